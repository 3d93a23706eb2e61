package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
)

// siteManifest declares what somebody put on the machine by hand before mesh came.
const siteManifest = `module: site
run:
  volumes: {data: {name: sitedata}}
  containers:
    web:
      name: site
      image: %s
      command: ["%s"]
      ports: [{container: 8080, publish: 8090}]
      volumes: [{name: data, at: /data}, {path: /srv/site, at: /site}]
  files: [{path: /etc/site.conf, content: "greeting = declared\n"}]
  units:
    site-tick.service:
      enabled: true
      started: true
      content: |
        [Service]
        ExecStart=/bin/sleep 2000
        [Install]
        WantedBy=multi-user.target
firewall: {allow: [{port: 8090/tcp, from: anywhere}]}
`

// byHand is a container with a volume and a folder, a file and a unit, as a person makes them.
const byHand = `set -e
mkdir -p /srv/site; echo page > /srv/site/page
podman run -d --name site -p 8090:8080 -v sitedata:/data -v /srv/site:/site localhost/box:two two
printf 'greeting = by hand\npassword = hunter2secret\n' > /etc/site.conf
chown daemon:daemon /etc/site.conf; chmod 0640 /etc/site.conf
printf '[Unit]\nDescription=by hand\n[Service]\nExecStart=/bin/sleep 1000\n[Install]\nWantedBy=multi-user.target\n' > /etc/systemd/system/site-tick.service
systemctl daemon-reload; systemctl enable --quiet --now site-tick.service
`

// as is all that is looked at of them, in lines.
const as = `podman inspect site --format '{{.Id}} {{.State.Status}} {{range .Mounts}}{{.Name}}{{.Source}}>{{.Destination}} {{end}}'
stat -c '%a %U %G' /etc/site.conf; cat /etc/site.conf /etc/systemd/system/site-tick.service
systemctl show -p ActiveState,UnitFileState site-tick.service; podman volume inspect sitedata --format '{{.CreatedAt}}'
cat /srv/site/page`

func (b *boxes) siteSays(want ...string) {
	b.t.Helper()
	b.waitFor("the site to say "+strings.Join(want, " "), later, func() (bool, any) {
		out, err := b.Run(b.t.Context(), 1, "curl", "-s", "-m", "2", "http://127.0.0.1:8090/")
		for _, w := range want {
			if err != nil || !strings.Contains(out, w) {
				return false, fmt.Sprint(out, err)
			}
		}
		return true, out
	})
}

// site registers the module with an image.
func (b *boxes) site(version string) {
	b.t.Helper()
	b.Bed.Host(1).WriteFile(b.t, "/root/site/module.yaml", fmt.Sprintf(siteManifest, b.images[version], version), 0o644)
	b.coordinator("module", "register", "/root/site")
}

// refuses wants a command of the coordinator's to be refused with those words.
func (b *boxes) refuses(want string, args ...string) {
	b.t.Helper()
	out, err := b.Bed.Host(1).RunErr(b.t.Context(), append([]string{"mesh-coordinator"}, args...)...)
	b.must(err)
	if out.Exit != 1 || !strings.Contains(out.Stderr, want) {
		b.t.Errorf("%s: exit %d, %s%s, want %q", strings.Join(args, " "), out.Exit, out.Stdout, out.Stderr, want)
	}
}

// containerTaken: APP-9, APP-10, APP-18. What is there is held and compared, taken with the same data, and given back.
func containerTaken(b *boxes) {
	// Two images whose ages differ: "one" is made older than "two".
	b.on(1, "sh", "-c", `cd /root/image; for v in one two; do printf 'FROM scratch\nCOPY box /box\nENTRYPOINT ["/box"]\nLABEL site='$v'\n' > Containerfile
		podman build -q --timestamp $([ $v = one ] && echo 1000000000 || echo 1100000000) -t localhost/box:$v /root/image; done`)
	for _, v := range []string{"one", "two"} {
		b.images[v] = "localhost/box@" + strings.TrimSpace(b.on(1, "podman", "image", "inspect", "--format", "{{.Digest}}", "localhost/box:"+v))
	}
	b.on(1, "sh", "-c", byHand)
	b.siteSays("version=two")
	b.on(1, "curl", "-s", "-m", "2", "-f", "http://127.0.0.1:8090/keep")
	found := b.on(1, "sh", "-c", as)

	b.site("one")
	b.coordinator("assign", "host1", "site")
	_, err := b.Bed.Host(1).RunErr(b.t.Context(), "mesh-coordinator", "push", "--all", "--why", "what is there is held")
	b.must(err)
	held := ""
	b.waitFor("three held things", later, func() (bool, any) {
		out, err := b.Bed.Host(1).RunErr(b.t.Context(), "mesh-coordinator", "take", "host1", "site")
		held = out.Stdout
		return err == nil && out.Exit == 0 && strings.Count(held, "WHAT  ") == 3 && strings.Contains(held, "2001-09-09"), held + out.Stderr
	})
	for _, want := range []string{"volume sitedata at /data", "/srv/site at /site", "8080/tcp -> 0.0.0.0:8090", "2004-11-09", "--replace /etc/site.conf --downgrade", "- greeting = by hand", "daemon:daemon",
		"- ExecStart=/bin/sleep 1000", "nothing was taken"} {
		if !strings.Contains(held, want) {
			b.t.Errorf("the comparison does not say %q:\n%s", want, held)
		}
	}
	if shown := b.on(1, "sh", "-c", "mesh-agent show; mesh-coordinator node show host1; true"); strings.Contains(held+shown, "hunter2") || strings.Count(shown, "container:site") < 2 {
		b.t.Errorf("a secret is shown, or the container is not:\n%s\n%s", held, shown)
	}
	b.refuses("--downgrade", "take", "host1", "site", "--yes", "--replace", "/etc/site.conf", "--why", "older")
	b.refuses("without a reason", "take", "host1", "site", "--yes")
	b.site("two")
	_, err = b.Bed.Host(1).RunErr(b.t.Context(), "mesh-coordinator", "push", "--all", "--why", "a newer image")
	b.must(err)
	b.waitFor("the newer image to be compared", later, func() (bool, any) {
		out, err := b.Bed.Host(1).RunErr(b.t.Context(), "mesh-coordinator", "take", "host1", "site")
		return err == nil && strings.Count(out.Stdout, "2004-11-09") == 2, out.Stdout
	})
	b.refuses("--replace /etc/site.conf", "take", "host1", "site", "--yes", "--why", "no word of the file")
	if now := b.on(1, "sh", "-c", as); now != found {
		b.t.Fatalf("something was taken without a word:\n%s\nit was\n%s", now, found)
	}

	out := b.coordinator("take", "host1", "site", "--yes", "--replace", "/etc/site.conf", "--why", "mesh runs it now")
	if !strings.Contains(out, "taken") {
		b.t.Errorf("it says %s", out)
	}
	b.siteSays("version=two", "data=precious")
	b.well(1)
	for what, want := range map[string]string{"cat /etc/site.conf; stat -c '%a %U' /etc/site.conf": "greeting = declared\n644 root\n", "systemctl show -p ActiveState site-tick.service": "ActiveState=active\n",
		"systemctl cat site-tick.service | grep -c 'sleep 2000'": "1\n", "podman ps -a --format '{{.Names}}' | grep before-mesh": "site.before-mesh\n", "cat /srv/site/page": "page\n",
		"podman inspect site --format '{{range .Mounts}}{{.Name}}{{.Source}}>{{.Destination}} {{end}}' | tr ' ' '\n' | grep -c -e sitedata -e /srv/site": "2\n"} {
		if got := b.on(1, "sh", "-c", what); got != want {
			b.t.Errorf("%s says %q, want %q", what, got, want)
		}
	}
	if out := b.coordinator("changes", "--limit", "10"); !strings.Contains(out, "mesh runs it now") || !strings.Contains(out, "replaced /etc/site.conf") {
		b.t.Errorf("the journal does not say it:\n%s", out)
	}

	b.refuses("it is assigned there", "give-back", "host1", "site", "--why", "too early")
	b.coordinator("unassign", "host1", "site")
	var back struct{ Outcome struct{ State string } }
	b.must(json.Unmarshal([]byte(b.coordinator("give-back", "host1", "site", "--why", "a mistake", "--json")), &back))
	if back.Outcome.State != "given back" {
		b.t.Errorf("it ended %q", back.Outcome.State)
	}
	b.siteSays("version=two", "data=precious")
	if now := b.on(1, "sh", "-c", as); now != found {
		b.t.Errorf("it was\n%s\nand is\n%s", found, now)
	}
	b.refuses("nothing is taken for it", "give-back", "host1", "site", "--why", "again")
	b.on(1, "sh", "-c", "podman rm -f site; podman volume rm sitedata; systemctl disable --now site-tick.service; rm /etc/systemd/system/site-tick.service; systemctl daemon-reload")
	b.well(1)
}

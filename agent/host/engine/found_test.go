package engine_test

import (
	"slices"
	"strings"
	"testing"

	"mesh/agent/host/engine"
	"mesh/shared/refusal"
)

// inspected is what each engine says of a container, shortened to what is asked.
const inspected = `{"image":"f00","config":null,"created":"2026-01-01T00:00:00Z","status":"running","ports":{},"networks":{"podman":{}},
"mounts":[{"Type":"volume","Name":"data","Source":"/x","Destination":"/data","RW":true},{"Type":"bind","Source":"/srv","Destination":"/ro","RW":false},
{"Type":"volume","Name":"abababababababababababababababababababababababababababababababab","Destination":"/anon","RW":true}],
"id":"cafe","restart":"always","remove":false,"name":"docker.io/library/nginx:latest","command":["podman","run","-dit","--name","web","--replace","-v","data:/data","nginx","-d"]}`

// APP-10, APP-18: what a take changes of a container, and how it is made again, by either engine.
func TestWhatATakeAsksOfAnEngine(t *testing.T) {
	for program, want := range map[string][]string{
		podman: {"stop cafe", "rename cafe web.before-mesh", "rm -f cafe", "-u INVOCATION_ID /usr/bin/podman start web", "ps --all --filter network=podman --format {{.Names}}",
			"-u INVOCATION_ID /usr/bin/podman run --detach -it --name web -v data:/data nginx -d"},
		docker: {"stop cafe", "rename cafe web.before-mesh", "rm -f cafe", "start web", "ps --all --filter network=podman --format {{.Names}}", "update --restart=no cafe"},
	} {
		s := &stub{answer: func(argv []string) (int, string) {
			switch argv[1] {
			case "container":
				return 0, "WARN: something\n" + inspected
			case "image":
				return 0, `f00 "2026-02-03T04:05:06.7Z"`
			case "ps":
				return 0, "web\ndb\n"
			}
			return 0, ""
		}}
		e := on(t, program, s, nil)
		c, err := e.Inspect(t.Context(), "web")
		must(t, err)
		if c.ID != "cafe" || !c.StartsAtBoot() || len(c.Anonymous()) != 1 || len(c.Data) != 2 || c.Data[1] != (engine.Data{At: "/data", Source: "data", Volume: true}) {
			t.Errorf("%s: %+v", program, c)
		}
		if made, id, err := e.ImageMade(t.Context(), "x"); err != nil || made.Format("2006-01-02") != "2026-02-03" || id != "sha256:f00" {
			t.Errorf("%s: its image is of %v, %s, %v", program, made, id, err)
		}
		s.asked = nil
		must(t, e.Stop(t.Context(), c.ID))
		must(t, e.Rename(t.Context(), c.ID, "web.before-mesh"))
		must(t, e.RemoveKeepingData(t.Context(), c.ID))
		must(t, e.Start(t.Context(), "web"))
		names, err := e.OnNetwork(t.Context(), "podman")
		if err != nil || !slices.Equal(names, []string{"db", "web"}) {
			t.Errorf("%s: on the network are %q, %v", program, names, err)
		}
		again, boot := e.MakeAgain(t.Context(), c), e.SetRestart(t.Context(), c.ID, "no")
		if program == podman && (again != nil || boot == nil) || program == docker && (refusal.Of(again) == nil || boot != nil) {
			t.Errorf("%s: made again: %v, its restart policy: %v", program, again, boot)
		}
		got := slices.DeleteFunc(s.asked, func(a string) bool { return strings.HasPrefix(a, "container") })
		if !slices.Equal(got, want) {
			t.Errorf("%s was asked %q, want %q", program, got, want)
		}
	}
}

// A container that comes back from another image than it was of is said to.
func TestMadeAgainOfAnotherImage(t *testing.T) {
	s := &stub{answer: func([]string) (int, string) { return 0, inspected }}
	e := on(t, podman, s, nil)
	c, err := e.Inspect(t.Context(), "web")
	must(t, err)
	c.Image = "sha256:0ther"
	if err := e.MakeAgain(t.Context(), c); refusal.Of(err) == nil || !strings.Contains(err.Error(), "another image now") {
		t.Errorf("%v", err)
	}
	c.Command = []string{"podman", "run", "--cidfile=/run/x", "nginx"}
	if e.CanMakeAgain(c) {
		t.Error("what its unit makes would be made without it")
	}
}

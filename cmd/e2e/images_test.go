package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"mesh/testbus/hosts"
	"mesh/testbus/images"
)

// layerSize is that of each of the image's five layers, which nothing packs smaller.
const layerSize = 6 << 20

const imageManifest = `module: greeter
build: {images: {web: {from: image}}}
run:
  containers:
    web:
      image: built
      command: [serve, /etc/hello.conf]
      networks: [host]
firewall:
  allow: [{port: 8080/tcp, from: anywhere}]
needs: {engine: true}
`

// writeImage makes the module's image, which greets with text, and brings the folder to the first host.
func (m *mesh) writeImage(text string) {
	m.t.Helper()
	program, err := os.ReadFile(filepath.Join(m.Source, "docs/examples/hello/dist/bin/hello"))
	m.must(err)
	i := images.Image{Entrypoint: []string{"/bin/hello"}}
	for n := range 5 {
		l := images.Layer{fmt.Sprintf("noise/%d", n): images.Noise(layerSize, byte(n))}
		switch n {
		case 0:
			l["bin/hello"] = string(program)
		case 3:
			l["etc/hello.conf"] = "greeting = " + text + "\nnode = a container\nlisten = :8080\n"
		}
		i.Layers = append(i.Layers, l)
	}
	dir := filepath.Join(m.t.TempDir(), "image")
	_, err = images.Write(dir, i)
	m.must(err)
	first := m.Bed.Host(1)
	m.on(1, "rm", "-rf", "/root/greeter")
	first.CopyDir(m.t, dir, "/root/greeter/image")
	first.WriteFile(m.t, "/root/greeter/module.yaml", imageManifest, 0o644)
}

// received is how many bytes came to host number i so far.
func (m *mesh) received(i int) int64 {
	m.t.Helper()
	n, err := strconv.ParseInt(strings.TrimSpace(m.on(i, "cat", "/sys/class/net/eth0/statistics/rx_bytes")), 10, 64)
	m.must(err)
	return n
}

// TestImages: an image travels over the bus into a real engine, through a cut link and a killed agent; of a
// new build only the layer that changed travels (APP-13).
func TestImages(t *testing.T) {
	m := beginWith(t, 2, hosts.Podman)
	_, err := m.Genesis(t.Context())
	m.must(err)
	line, err := m.Invite(t.Context(), 2)
	m.must(err)
	_, err = m.Enrol(t.Context(), 2, line)
	m.must(err)
	m.writeImage("first")
	m.coordinator("module", "register", "/root/greeter")
	m.coordinator("assign", "host2", "greeter")

	begun := m.received(2)
	m.coordinator("push", "host2", "--wait", "0", "--why", "first")
	m.waitFor("a part of the image to come", later, func() (bool, any) {
		n := m.received(2) - begun
		return n > layerSize/2, n
	})
	m.Bed.Host(2).CutLink(t)
	m.on(2, "systemctl", "kill", "--signal=KILL", "mesh-agent.service")
	t.Logf("cut after %d of %d bytes", m.received(2)-begun, 5*layerSize)
	m.waitFor("the agent to be up again without its bus", later, func() (bool, any) {
		doc, _ := m.shown(2)
		return doc.Daemon.Up && !doc.Bus.Up, fmt.Sprintf("%+v", doc)
	})
	m.Bed.Host(2).RestoreLink(t)
	m.greets(2, "first")
	m.well(2)

	m.writeImage("second")
	m.coordinator("module", "register", "/root/greeter")
	before := m.received(2)
	m.coordinator("push", "host2", "--why", "second")
	m.greets(2, "second")
	m.well(2)
	if n := m.received(2) - before; n < layerSize || n > layerSize*3/2 {
		t.Errorf("one layer of five changed, %d bytes, and %d came", layerSize, n)
	} else {
		t.Logf("one layer of five changed, %d bytes, and %d came", layerSize, n)
	}
	t.Log(m.on(2, "podman", "images", "--digests"))
	if out := m.on(1, "mesh-coordinator", "artifact", "verify"); !strings.Contains(out, ", 0 were damaged") {
		t.Errorf("verify says %s", out)
	}
}

package apply_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"mesh/agent/apply"
	"mesh/agent/plan"
	"mesh/agent/take"
	"mesh/shared/clock"
	"mesh/shared/declaration"
	"mesh/shared/manifest"
	"mesh/shared/refusal"
	"mesh/shared/report"
)

// paperBox is a container of the paper engine.
type paperBox struct {
	ID, Name, Image, ImageName, Status, Restart string
	Labels                                      map[string]string
	Mounts                                      []map[string]any
	Command                                     []string
	Remove                                      bool
}

const foundImage = "0000000000000000000000000000000000000000000000000000000000000f00"

// made are when the images of the paper engine were made.
func made(word string) string {
	switch {
	case strings.HasSuffix(word, foundImage):
		return foundImage + ` "2026-02-01T00:00:00Z"`
	case word == twoImage: // older than what runs
		return strings.Repeat("2", 64) + ` "2026-01-01T00:00:00Z"`
	}
	return strings.Repeat("1", 64) + ` "2026-03-01T00:00:00Z"`
}

// containers are the commands about containers that are there.
func (e paperEngine) containers(argv []string) (int, string, error) {
	var all []*paperBox
	if b, err := os.ReadFile(e.path("boxes.json")); err == nil {
		if err := json.Unmarshal(b, &all); err != nil {
			return 0, "", err
		}
	}
	find := func(word string) *paperBox {
		for _, b := range all {
			if b.Name == word || b.ID == word {
				return b
			}
		}
		return nil
	}
	last := argv[len(argv)-1]
	b := find(last)
	switch argv[1] {
	case "image":
		return 0, made(last), nil
	case "ps":
		return 0, "web\nneighbour\n", nil
	case "container":
		if b == nil {
			return 125, "Error: no such container " + last, nil
		}
		text, err := json.Marshal(map[string]any{"image": b.Image, "config": b.Labels, "created": "2026-04-01T00:00:00Z", "status": b.Status, "id": b.ID, "restart": b.Restart,
			"remove": b.Remove, "name": b.ImageName, "command": b.Command, "networks": map[string]any{"podman": nil}, "mounts": b.Mounts})
		return 0, string(text), err
	case "rename":
		if b = find(argv[2]); b == nil || find(last) != nil {
			return 125, "Error: no such container, or the name is in use", nil
		}
		b.Name = last
	case "stop", "start":
		if b == nil {
			return 125, "Error: no such container", nil
		}
		b.Status = map[string]string{"stop": "exited", "start": "running"}[argv[1]]
		if b.Remove && argv[1] == "stop" {
			all = slices.DeleteFunc(all, func(x *paperBox) bool { return x == b })
		}
	case "rm":
		all = slices.DeleteFunc(all, func(x *paperBox) bool { return x == b })
	case "run", "create":
		all = append(all, &paperBox{ID: "made-again", Name: "web", Image: foundImage, ImageName: "localhost/web:latest", Status: "running", Mounts: foundBox().Mounts, Command: argv})
	default:
		return 0, "", nil
	}
	return 0, "", e.keep(all)
}

func (e paperEngine) keep(all []*paperBox) error {
	text, err := json.Marshal(all)
	var list []map[string]any
	for _, b := range all {
		list = append(list, map[string]any{"names": []string{b.Name}})
	}
	files, err2 := json.Marshal(list)
	return errors.Join(err, err2, os.WriteFile(e.path("boxes.new"), text, 0o644), os.Rename(e.path("boxes.new"), e.path("boxes.json")),
		e.put(store+"/overlay-containers/containers.json", string(files)))
}

func foundBox() *paperBox {
	return &paperBox{ID: "cafe01", Name: "web", Image: foundImage, ImageName: "localhost/web:latest", Status: "running",
		Command: []string{"podman", "run", "-d", "--name", "web", "-v", "data:/data", "web"},
		Mounts: []map[string]any{{"Type": "volume", "Name": "data", "Source": "/x", "Destination": "/data", "RW": true},
			{"Type": "bind", "Source": "/srv/web", "Destination": "/web", "RW": true}}}
}

func (b *bed) boxesNow(t testing.TB) (out []string) {
	t.Helper()
	text, err := os.ReadFile(b.path("boxes.json"))
	must(t, err)
	var all []*paperBox
	must(t, json.Unmarshal(text, &all))
	for _, x := range all {
		out = append(out, x.ID+" "+x.Name+" "+x.Status)
	}
	return out
}

const (
	handConf = "greeting = by hand\npassword = hunter2secret\n"
	handUnit = "[Service]\nExecStart=/bin/by-hand\n[Install]\nWantedBy=multi-user.target\n"
)

// somebodys puts a container with data, a file and a unit on the machine, as a person does.
func somebodys(t testing.TB, b *bed, change func(*paperBox)) {
	t.Helper()
	b.installPodman(t)
	box := foundBox()
	if change != nil {
		change(box)
	}
	must(t, paperEngine{b}.keep([]*paperBox{box}))
	must(t, b.put(store+"/volumes/data/_data/kept", "precious"))
	must(t, b.put("/srv/web/page", "mine"))
	must(t, b.put("/etc/web.conf", handConf))
	must(t, os.Chmod(b.root("/etc/web.conf"), 0o640))
	must(t, unix.Setxattr(b.root("/etc/web.conf"), "user.whose", []byte("mine"), 0))
	must(t, b.put("/etc/systemd/system/web.service", handUnit))
	_, err := b.units.Enable(t.Context(), []string{"web.service"})
	must(t, err)
	_, err = b.units.Start(t.Context(), "web.service")
	must(t, err)
}

// declares is a module that declares all of them.
func declares(image string) mod {
	return module("site", manifest.Run{
		Volumes: map[string]manifest.Volume{"data": {Name: "data"}},
		Containers: map[string]manifest.Container{"web": {Name: "web", Image: image,
			Volumes: []manifest.Mount{{Name: "data", At: "/data"}, {Path: "/srv/web", At: "/web"}}}},
		Files: []manifest.File{file("/etc/web.conf", "greeting = declared\n")},
		Units: map[string]manifest.Unit{"web.service": {Content: "[Service]\nExecStart=/bin/declared\n[Install]\nWantedBy=multi-user.target\n", Enabled: true, Started: true}},
	})
}

// word is a take of all that r says is held.
func word(r apply.Result, id int64) declaration.Take {
	w := declaration.Take{Module: "site", ID: id, Things: map[string]string{}, Replace: []string{"/etc/web.conf"}}
	for _, h := range r.Held {
		w.Things[h.Thing] = h.Seen
	}
	return w
}

func (b *bed) says(t testing.TB, seq uint64, w declaration.Take, mods ...mod) apply.Result {
	t.Helper()
	c := b.content(t, mods...)
	c.Takes = []declaration.Take{w}
	return b.acceptContent(t, seq, c)
}

func takeOf(r apply.Result) report.Take {
	if len(r.Taken) != 1 {
		return report.Take{}
	}
	return r.Taken[0]
}

// settled makes passes for as long as there is something to come.
func (b *bed) settled(t testing.TB, r apply.Result) apply.Result {
	t.Helper()
	for range 20 {
		if r.NextTry.IsZero() {
			return r
		}
		if wait := r.NextTry.Sub(b.clock.Now()); wait > 0 {
			b.clock.Advance(wait)
		}
		r = b.pass(t, apply.Reconcile)
	}
	t.Fatalf("it never ends: %+v", r)
	return r
}

// APP-9: what is there is left alone, and said with what a person compares; no secret is shown.
func TestHeldThingsAreSaid(t *testing.T) {
	b := newBed(t)
	somebodys(t, b, nil)
	b.asked(t)
	r := b.accept(t, 1, declares(oneImage))
	r = b.settled(t, r)
	if r.Outcome != report.Failed || len(r.Held) != 3 || r.Refused == nil || !strings.Contains(r.Refused.Do, "mesh-coordinator take n1 site") {
		t.Fatalf("%s, held %d: %+v", r.Outcome, len(r.Held), r.Refused)
	}
	text, err := json.MarshalIndent(r.Held, "", " ")
	must(t, err)
	for _, want := range []string{`"podman (with neighbour)"`, "volume data at /data", "2026-02-01", "2026-03-01", "- greeting = by hand", "+ greeting = declared", "0640", `"replace"`,
		"- ExecStart=/bin/by-hand", "user.whose", "web.before-mesh"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("it does not say %s:\n%s", want, text)
		}
	}
	if strings.Contains(string(text), "hunter2") {
		t.Errorf("a secret is shown:\n%s", text)
	}
	b.asked(t)
	b.clock.Advance(2 * time.Minute)
	b.pass(t, apply.Reconcile)
	for _, a := range b.asked(t) { // to look again starts no program but the one that finds it there
		if !strings.HasPrefix(a, "container inspect") {
			t.Errorf("the engine was asked %s", a)
		}
	}
	if got := b.boxesNow(t); !slices.Equal(got, []string{"cafe01 web running"}) || b.read(t, "/etc/web.conf") != handConf || b.read(t, "/etc/systemd/system/web.service") != handUnit {
		t.Errorf("something was touched: %v", got)
	}
}

// APP-10: a word that names something else than is there, an older image or other content nobody allowed, takes nothing.
func TestTakesThatAreRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		image  string
		found  func(*paperBox)
		change func(*declaration.Take)
		says   string
	}{
		"an older image":         {twoImage, nil, nil, "--downgrade"},
		"a file that differs":    {oneImage, nil, func(w *declaration.Take) { w.Replace = nil }, "--replace /etc/web.conf"},
		"another than compared":  {oneImage, nil, func(w *declaration.Take) { w.Things["container:web"] = "other" }, "is another than when it was compared"},
		"one more is held":       {oneImage, nil, func(w *declaration.Take) { delete(w.Things, "unit:web.service") }, "unit:web.service is held too"},
		"other data":             {oneImage, func(x *paperBox) { x.Mounts[0]["Name"] = "olddata" }, nil, "are in olddata"},
		"data would go with it":  {oneImage, func(x *paperBox) { x.Remove, x.Mounts[0]["Name"] = true, strings.Repeat("ab", 32) }, nil, "are in"},
		"nobody could undo that": {oneImage, func(x *paperBox) { x.Remove, x.Command = true, nil }, nil, "--rm"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			somebodys(t, b, tt.found)
			r := b.settled(t, b.accept(t, 1, declares(tt.image)))
			w := word(r, 7)
			if tt.change != nil {
				tt.change(&w)
			}
			before := b.boxesNow(t)
			r = b.settled(t, b.says(t, 2, w, declares(tt.image)))
			got := takeOf(r)
			if got.State != report.TakeNot || got.ID != 7 || !strings.Contains(got.Why, tt.says) || len(r.Held) != 3 {
				t.Errorf("%+v, want %q; %d held", got, tt.says, len(r.Held))
			}
			if !slices.Equal(b.boxesNow(t), before) || b.read(t, "/etc/web.conf") != handConf {
				t.Error("something was taken")
			}
			b.restart(t)
			if r := b.pass(t, apply.Boot); takeOf(r).State != got.State || takeOf(r).Why != got.Why {
				t.Errorf("after a restart it says %+v", takeOf(r))
			}
		})
	}
}

// APP-10, APP-18: after a take all is as declared with the same data, and after a give-back all is as it was found.
func TestTakeAndGiveBack(t *testing.T) {
	for name, tt := range map[string]struct {
		found func(*paperBox)
		aside []string
	}{
		"it stays, stopped":       {nil, []string{"cafe01 web.before-mesh exited"}},
		"it would start at boot":  {func(x *paperBox) { x.Restart = "always" }, nil},
		"it goes when it ends":    {func(x *paperBox) { x.Remove = true }, nil},
		"it was not running, too": {func(x *paperBox) { x.Status = "exited" }, []string{"cafe01 web.before-mesh exited"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			somebodys(t, b, tt.found)
			found := b.boxesNow(t)
			r := b.settled(t, b.accept(t, 1, declares(oneImage)))
			r = applied(t, b.settled(t, b.says(t, 2, word(r, 7), declares(oneImage))))
			if got := takeOf(r); got.State != report.Taken || len(got.Things) != 3 || len(r.Held) > 0 {
				t.Errorf("%+v, held %v", got, r.Held)
			}
			if got := b.boxesNow(t); !slices.Equal(got, tt.aside) {
				t.Errorf("containers %v, want %v", got, tt.aside)
			}
			if b.read(t, "/etc/web.conf") != "greeting = declared\n" || !strings.Contains(b.read(t, "/etc/systemd/system/web.service"), "/bin/declared") {
				t.Error("the file or the unit is not as declared")
			}
			if u := b.units.get(t, "mesh-site-web.service"); u.Active != "active" {
				t.Errorf("the container's unit is %+v", u)
			}
			for p, want := range map[string]string{store + "/volumes/data/_data/kept": "precious", "/srv/web/page": "mine"} {
				if got := b.read(t, p); got != want {
					t.Errorf("%s has %q", p, got)
				}
			}
			b.clock.Advance(time.Minute)
			if r := applied(t, b.pass(t, apply.Reconcile)); r.Steps > 0 {
				t.Errorf("it does not rest: %d steps", r.Steps)
			}

			r = applied(t, b.settled(t, b.says(t, 3, declaration.Take{Module: "site", ID: 8, Back: true})))
			if got := takeOf(r); got.State != report.GivenBack || got.ID != 8 {
				t.Errorf("%+v", got)
			}
			wasAs(t, b, found, tt.aside == nil)
			if r = b.settled(t, b.accept(t, 4, declares(oneImage))); len(r.Held) != 3 {
				t.Errorf("declared again, %d are held", len(r.Held))
			}
		})
	}
}

// wasAs checks that all is as somebodys put it there.
func wasAs(t *testing.T, b *bed, boxes []string, anew bool) {
	t.Helper()
	got := b.boxesNow(t)
	if anew {
		boxes = []string{"made-again web running"}
	}
	if !slices.Equal(got, boxes) {
		t.Errorf("containers are %v, they were %v", got, boxes)
	}
	if text := b.read(t, "/etc/web.conf"); text != handConf {
		t.Errorf("the file is %q", text)
	}
	st, err := os.Stat(b.root("/etc/web.conf"))
	must(t, err)
	var value [16]byte
	n, err := unix.Getxattr(b.root("/etc/web.conf"), "user.whose", value[:])
	if st.Mode().Perm() != 0o640 || err != nil || string(value[:n]) != "mine" {
		t.Errorf("its mode is %v, its attribute %q, %v", st.Mode(), value[:max(n, 0)], err)
	}
	if text := b.read(t, "/etc/systemd/system/web.service"); text != handUnit {
		t.Errorf("the unit is %q", text)
	}
	u := b.units.get(t, "web.service")
	_, enabled := os.Lstat(b.units.wants("web.service"))
	if u.Active != "active" || u.Text != handUnit || enabled != nil {
		t.Errorf("the unit is %+v, enabled: %v", u, enabled)
	}
	if b.read(t, store+"/volumes/data/_data/kept") != "precious" || b.read(t, "/srv/web/page") != "mine" {
		t.Error("data are gone")
	}
	if _, err := os.Lstat(b.root("/etc/systemd/system/mesh-site-web.service")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the container's unit of mesh stays: %v", err)
	}
}

// APP-18: at the machine, without the mesh; what is given back so is not taken again by the old word.
func TestGiveBackAtTheMachine(t *testing.T) {
	b := newBed(t)
	somebodys(t, b, nil)
	found := b.boxesNow(t)
	if _, err := b.engine.GiveBack(t.Context(), "site"); refusal.Of(err) == nil {
		t.Errorf("with nothing taken: %v", err)
	}
	r := b.settled(t, b.accept(t, 1, declares(oneImage)))
	applied(t, b.settled(t, b.says(t, 2, word(r, 7), declares(oneImage))))
	b.restart(t)
	things, err := b.engine.GiveBack(t.Context(), "site")
	if err != nil || len(things) != 3 {
		t.Fatalf("%v, %v", things, err)
	}
	wasAs(t, b, found, false)
	b.restart(t)
	if r = b.settled(t, b.pass(t, apply.Boot)); len(r.Held) != 3 || takeOf(r).State != report.GivenBack {
		t.Errorf("held %d, %+v", len(r.Held), takeOf(r))
	}
	wasAs(t, b, found, false)
}

// What somebody put in the place of a taken thing since is not overwritten.
func TestGiveBackOverSomethingElse(t *testing.T) {
	b := newBed(t)
	somebodys(t, b, nil)
	r := b.settled(t, b.accept(t, 1, declares(oneImage)))
	applied(t, b.settled(t, b.says(t, 2, word(r, 7), declares(oneImage))))
	b.settled(t, b.accept(t, 3))
	must(t, b.put("/etc/web.conf", "somebody else's"))
	r = b.settled(t, b.says(t, 4, declaration.Take{Module: "site", ID: 8, Back: true}))
	if got := takeOf(r); got.State != report.TakeNot || !strings.Contains(got.Why, "something else stands there") {
		t.Errorf("%+v", got)
	}
	if b.read(t, "/etc/web.conf") != "somebody else's" || !slices.Equal(b.boxesNow(t), []string{"cafe01 web.before-mesh exited"}) {
		t.Error("something was given back")
	}
	must(t, os.Remove(b.root("/etc/web.conf")))
	b.settled(t, b.says(t, 5, declaration.Take{Module: "site", ID: 9, Back: true}))
	wasAs(t, b, []string{"cafe01 web running"}, false)
}

// APP-14: a disk too full for the receipt: nothing is touched, it is said, and tried again.
func TestDiskFullForTheReceipt(t *testing.T) {
	b, err := makeBed(t.TempDir())
	must(t, err)
	small(t, b.path("state"), 3<<20)
	b.open(t)
	somebodys(t, b, nil)
	b.settled(t, b.accept(t, 1, declares(oneImage)))
	must(t, b.put("/etc/web.conf", handConf+noise(3<<20))) // the content is what does not fit
	r := b.says(t, 2, word(b.pass(t, apply.Reconcile), 7), declares(oneImage))
	if r.Outcome != report.Failed || !strings.Contains(r.Modules[0].Detail, "disk full") || len(r.Taken) > 0 {
		t.Fatalf("%s %+v %+v", r.Outcome, r.Modules, r.Taken)
	}
	if got := b.boxesNow(t); !slices.Equal(got, []string{"cafe01 web running"}) || !strings.HasPrefix(b.read(t, "/etc/web.conf"), handConf) {
		t.Errorf("something was touched: %v", got)
	}
	must(t, unix.Mount("tmpfs", b.path("state"), "tmpfs", unix.MS_REMOUNT, "size=64m"))
	r = applied(t, b.settled(t, r))
	if got := takeOf(r); got.State != report.Taken {
		t.Errorf("%+v", got)
	}
}

// takeLives are a take and a give-back during which the agent dies.
func takeLives(t *testing.T, back bool) (next func(b *bed) declaration.Signed, past func(b *bed), want report.TakenState) {
	var r apply.Result
	past = func(b *bed) {
		somebodys(t, b, nil)
		r = b.settled(t, b.accept(t, 1, declares(oneImage)))
		if back {
			applied(t, b.settled(t, b.says(t, 2, word(r, 7), declares(oneImage))))
		}
	}
	if back {
		return func(b *bed) declaration.Signed {
			c := b.content(t)
			c.Takes = []declaration.Take{{Module: "site", ID: 8, Back: true}}
			return b.sign(t, 9, c)
		}, past, report.GivenBack
	}
	return func(b *bed) declaration.Signed {
		c := b.content(t, declares(oneImage))
		c.Takes = []declaration.Take{word(r, 7)}
		return b.sign(t, 9, c)
	}, past, report.Taken
}

// APP-5, APP-10, APP-18: killed at any instant of a take or a give-back it goes on where it was.
func TestKilledWhileTakingItGoesOn(t *testing.T) {
	reached := map[string]bool{}
	for name, back := range map[string]bool{"take": false, "give back": true} {
		t.Run(name, func(t *testing.T) {
			next, past, want := takeLives(t, back)
			dir := filepath.Join(t.TempDir(), "bed")
			first, err := makeBed(dir)
			must(t, err)
			must(t, first.start())
			past(first)
			must(t, os.WriteFile(first.path("next"), next(first), 0o644))
			must(t, first.stop())
			start := dir + ".start"
			must(t, os.Rename(dir, start))
			for die, died := 1, true; died; die++ {
				must(t, os.RemoveAll(dir))
				if out, err := exec.CommandContext(t.Context(), "cp", "-a", start, dir).CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				var points []string
				points, died = liveTaking(t, dir, die)
				for _, p := range points {
					reached[p] = true
				}
				tookEnd(t, dir, fmt.Sprintf("killed at %d, after %q", die, points[max(0, len(points)-1):]), want, back)
			}
		})
	}
	for _, p := range take.FailPoints {
		if !reached[p] {
			t.Errorf("no life came to %q", p)
		}
	}
}

const takeEnv = "MESH_TAKE_FAILPOINT"

// takeChild takes the declaration in the file "next" in and goes on for as long as something is to come, and dies at
// the n-th fail point.
func takeChild(at string) {
	flag.Parse()
	b, err := bedAt(os.Getenv(bedEnv))
	if err != nil {
		panic(err)
	}
	var die, n int
	fmt.Sscan(at, &die)
	b.workers = 1 // so that the n-th is the same one each time
	b.clock = clock.NewFake(clock.Real().Now().Add(time.Hour))
	b.point = func(name string) {
		if op := strings.TrimPrefix(strings.TrimPrefix(name, "before "), "after "); slices.Contains(plan.Ops[:], plan.Op(op)) {
			return // at these the other lives die
		}
		if n++; n == die {
			if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
				panic(err)
			}
			select {}
		}
		fmt.Println("point:", name)
	}
	if err := b.start(); err != nil {
		panic(err)
	}
	signed, err := os.ReadFile(b.path("next"))
	if err != nil {
		panic(err)
	}
	r, err := b.engine.Accept(context.Background(), signed)
	for i := 0; err == nil && !r.NextTry.IsZero() && i < 20; i++ {
		b.clock.Advance(max(r.NextTry.Sub(b.clock.Now()), 0))
		r, err = b.engine.Pass(context.Background(), apply.Reconcile)
	}
	if err != nil {
		panic(err)
	}
	os.Exit(0)
}

// liveTaking runs the child and returns the fail points it came to before it died, if it did.
func liveTaking(t *testing.T, dir string, die int) (points []string, died bool) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", takeEnv, die), bedEnv+"="+dir)
	out, err := cmd.Output()
	if died = err != nil && strings.Contains(err.Error(), "signal: killed"); err != nil && !died {
		t.Fatalf("the child: %v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "point: "); ok {
			points = append(points, name)
		}
	}
	return points, died
}

func tookEnd(t *testing.T, dir, when string, want report.TakenState, back bool) {
	t.Helper()
	b, err := bedAt(dir)
	must(t, err)
	b.clock = clock.NewFake(clock.Real().Now().Add(2 * time.Hour))
	must(t, b.start())
	defer func() { must(t, b.stop()) }()
	r := b.settled(t, b.pass(t, apply.Boot))
	if r.Seq != 9 {
		signed, err := os.ReadFile(b.path("next"))
		must(t, err)
		r, err = b.engine.Accept(t.Context(), signed)
		must(t, err)
		r = b.settled(t, r)
	}
	if r.Outcome != report.Applied || takeOf(r).State != want || len(r.Held) > 0 {
		t.Errorf("%s: %s %+v, held %d, %+v", when, r.Outcome, takeOf(r), len(r.Held), r.Refused)
	}
	if back {
		wasAs(t, b, []string{"cafe01 web running"}, false)
		return
	}
	if d := cmp.Diff([]string{"cafe01 web.before-mesh exited"}, b.boxesNow(t)); d != "" {
		t.Errorf("%s: containers (-want +got)\n%s", when, d)
	}
	if b.read(t, "/etc/web.conf") != "greeting = declared\n" || b.read(t, store+"/volumes/data/_data/kept") != "precious" {
		t.Errorf("%s: the file or the data are not as they should be", when)
	}
}

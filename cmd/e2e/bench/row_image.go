package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"mesh/coordinator/client"
	"mesh/shared/controller"
	"mesh/shared/declaration"
	"mesh/shared/subject"
	"mesh/testbus/images"
)

// imageModule is the module whose image row 16 changes.
const imageModule subject.Module = "image"

const (
	imageLayers = 5
	// imageLayer is the size of each layer in bytes.
	imageLayer = 4 << 20
)

// imageRows is row 16: of an image with five layers one changes. What travels is counted in bytes of messages,
// from the person who registers to the bus and from the bus to a machine whose engine has the other layers. The
// floor is that layer.
func imageRows(b *bench, ctx context.Context) ([]score, error) {
	dir, err := b.folder("image")
	if err != nil {
		return nil, err
	}
	b.say("row 16: an image of %d layers, one of them changed", imageLayers)
	m, err := makeMesh(ctx, dir, shape{Nodes: 1})
	if err != nil {
		return nil, err
	}
	daemon, err := b.startDaemon(ctx, m)
	if err != nil {
		return nil, err
	}
	defer daemon.leave()
	agent, err := start(ctx, "mesh-bundle")
	if err != nil {
		return nil, err
	}
	defer agent.leave()
	if err := agent.ask("start", bundleStart{Dir: filepath.Join(dir, "agent"), Fleet: m.Nodes}, nil); err != nil {
		return nil, err
	}
	c, err := operator(ctx, m.Operator)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var up, down [2]float64
	for i := range up {
		sent := c.Sent()
		image, err := registerImage(ctx, c, filepath.Join(dir, "module"), byte(i))
		if err != nil {
			return nil, err
		}
		up[i] = mebi(int64(c.Sent() - sent))
		var got int64
		if err := agent.ask("pull", image, &got); err != nil {
			return nil, err
		}
		down[i] = mebi(got)
	}
	line := func(what string, all [2]float64) score {
		return figures(16, "one layer of five changed: bytes "+what, "MiB", []float64{mebi(imageLayer)}, []float64{all[1]}).within(1.05, "that layer").
			note("the whole image: %.2f MiB of %.2f", all[0], mebi(imageLayers*imageLayer))
	}
	return []score{line("from who registers to the bus", up), line("from the bus to a machine", down)}, nil
}

func mebi(n int64) float64 { return float64(n) / (1 << 20) }

// registerImage makes the image with its third layer from seed, registers it, and lets the node fetch it.
func registerImage(ctx context.Context, c *client.Client, dir string, seed byte) (*declaration.Image, error) {
	i := images.Image{Command: []string{"/bin/none"}}
	for n := range byte(imageLayers) {
		s := n
		if n == 2 {
			s = 100 + seed
		}
		i.Layers = append(i.Layers, images.Layer{fmt.Sprintf("layer%d", n): images.Noise(imageLayer, s)})
	}
	at := filepath.Join(dir, "image")
	if err := os.RemoveAll(at); err != nil {
		return nil, err
	}
	digests, err := images.Write(at, i)
	if err != nil {
		return nil, err
	}
	text := "module: " + string(imageModule) + "\nbuild: {images: {web: {from: image}}}\n"
	if err := os.WriteFile(filepath.Join(dir, "module.yaml"), []byte(text), 0o644); err != nil {
		return nil, err
	}
	if _, err := c.Register(ctx, dir, "bench", nil); err != nil {
		return nil, err
	}
	if _, err := c.Assign(ctx, controller.AssignAsk{Node: nodeName(0), Module: imageModule}, nil); err != nil {
		return nil, err
	}
	pause(ctx, 2*time.Second) // the user list is renewed a moment after
	part := &declaration.Image{Name: "web", Arch: "amd64", ID: digests[0][1], Type: declaration.OCIManifest}
	for _, d := range digests[0] {
		st, err := os.Stat(filepath.Join(at, "blobs", "sha256", d))
		if err != nil {
			return nil, err
		}
		part.Blobs = append(part.Blobs, artifactOf(d, st.Size()))
	}
	return part, errors.Join(part.Check(), ctx.Err())
}

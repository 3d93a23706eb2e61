package main

import "context"

// table is the rows there are, in the order they run.
func table() []row {
	return []row{
		{[]int{1, 2, 3}, pushRows},
		{[]int{4}, idleRows},
		{[]int{5}, passRows},
		{[]int{6}, showRows},
		{[]int{7, 8, 9}, composeRows},
		{[]int{10}, filterRows},
		{[]int{11, 17}, unitsRows},
		{[]int{12}, stormRows},
		{[]int{13}, joinRows},
		{[]int{14}, memoryRows},
		{[]int{15}, bundleRows},
		{[]int{16}, imageRows},
	}
}

// parts are the words under which this program is a child.
func parts() map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"mesh-core":        corePart,
		"mesh-coordinator": coordinatorPart,
		"mesh-agents":      agentsPart,
		"mesh-links":       linksPart,
		"mesh-pass":        passPart,
		"mesh-bundle":      bundlePart,
		"mesh-filter":      filterPart,
		"mesh-foreign":     foreignPart,
		"idle-inside":      idleInsidePart,
		"units-inside":     unitsPart,
		"floor-core":       floorCorePart,
		"floor-pass":       floorPassPart,
		"floor-filter":     floorFilterPart,
		"floor-nft":        nftPart,
		"floor-bus":        floorBusPart,
		"floor-agents":     floorAgentsPart,
	}
}

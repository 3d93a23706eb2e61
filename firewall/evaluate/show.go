package evaluate

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
)

// How values are written for people, by what they are.

func showHex(b []byte) string { return "0x" + hex.EncodeToString(b) }

func showName(b []byte) string {
	if len(b) > 0 && len(b) < 16 && b[len(b)-1] != 0 {
		return fmt.Sprintf("%q", string(b)+"*")
	}
	return fmt.Sprintf("%q", string(chars(b)))
}

func be16(b []byte) uint16 {
	if len(b) != 2 {
		return 0
	}
	return binary.BigEndian.Uint16(b)
}

func showBig(b []byte) string {
	switch len(b) {
	case 1:
		return fmt.Sprint(b[0])
	case 2:
		return fmt.Sprint(be16(b))
	}
	return showHex(b)
}

func showNative(b []byte) string {
	if len(b) == 4 {
		return fmt.Sprint(binary.NativeEndian.Uint32(b))
	}
	return showHex(b)
}

func showProtocol(b []byte) string {
	if len(b) != 1 {
		return showHex(b)
	}
	for _, name := range []string{"tcp", "udp", "icmp", "icmpv6", "sctp", "dccp", "esp", "ah", "gre", "igmp"} {
		if protocolNumbers[name] == b[0] {
			return name
		}
	}
	return fmt.Sprint(b[0])
}

// showAddress shows an address, or the prefix that the first bytes of one are.
func showAddress(b []byte) string {
	if a, ok := netip.AddrFromSlice(b); ok {
		return a.String()
	}
	size := 4
	if len(b) > 4 {
		size = 16
	}
	if len(b) > 16 {
		return showHex(b)
	}
	a, _ := netip.AddrFromSlice(append(append([]byte{}, b...), make([]byte, size-len(b))...))
	return netip.PrefixFrom(a, len(b)*8).String()
}

type named struct {
	bit  uint32
	name string
}

func showBits(bits []named) func([]byte) string {
	return func(b []byte) string {
		if len(b) != 4 {
			return showHex(b)
		}
		n := binary.NativeEndian.Uint32(b)
		var list []string
		for _, x := range bits {
			if n&x.bit != 0 {
				list = append(list, x.name)
				n &^= x.bit
			}
		}
		if n != 0 {
			list = append(list, fmt.Sprintf("0x%x", n))
		}
		return strings.Join(list, ",")
	}
}

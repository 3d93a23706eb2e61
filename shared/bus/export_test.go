package bus

import "time"

// SetPublishBound shortens the wait of a test.
func (c *Conn) SetPublishBound(d time.Duration) { c.bound = d }

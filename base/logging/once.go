package logging

// Once remembers the last message on each subject, so that a loop reports a problem when it begins and when it changes,
// and not in each round. The zero value has reported nothing. It is for one goroutine.
type Once struct{ said map[string]string }

// News reports whether text differs from the last message on the subject. An empty text is no news: all is well, and
// the next message is reported again.
func (o *Once) News(subject, text string) bool {
	if text == "" {
		delete(o.said, subject)
		return false
	}
	if o.said[subject] == text {
		return false
	}
	if o.said == nil {
		o.said = map[string]string{}
	}
	o.said[subject] = text
	return true
}

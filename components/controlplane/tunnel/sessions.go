package tunnel

import "kubelith.io/kubelith/base/tunnel"

// add lets new connections to a node go through a session.
func (s *Server) add(node string, session *tunnel.Session, mode, reason string) {
	s.mu.Lock()
	before := s.sessions[node]
	s.sessions[node] = session
	s.changed.Send()
	news := s.said.News(node, mode+reason)
	s.mu.Unlock()
	if before != nil { // for example of an agent that was restarted
		before.Close()
	}
	if news {
		s.opts.Log.Infof("node %s has opened a tunnel for connections to its kubelet and its pods: %s", node, reason)
	}
}

// remove is the opposite of add.
func (s *Server) remove(node string, session *tunnel.Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions[node] == session {
		delete(s.sessions, node)
	}
}

// forget lets the next tunnel of a node be logged again.
func (s *Server) forget(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.said.News(node, "")
}

// session returns the session of a node, or nil.
func (s *Server) session(node string) *tunnel.Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[node]
}

// state returns what routes are built from.
func (s *Server) state() (cluster *view, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cluster, s.changed.Next()
}

// has reports whether a node has a tunnel.
func (s *Server) has(node string) bool { return s.session(node) != nil }

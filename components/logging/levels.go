package logging

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"
)

// levels are those of the components.
type levels struct {
	others logrus.Level
	of     map[string]logrus.Level
}

// parseLevels reads "info,kubelet=debug": the level of all components, and those of some. One without a name may be
// missing, and is info then.
func parseLevels(text string) (levels, error) {
	l := levels{others: logrus.InfoLevel, of: map[string]logrus.Level{}}
	for part := range strings.SplitSeq(text, ",") {
		component, name, ok := strings.Cut(part, "=")
		if !ok {
			component, name = "", part
		}
		level, err := logrus.ParseLevel(name)
		if err != nil || level < logrus.ErrorLevel {
			return levels{}, fmt.Errorf("log level %q is not known: use error, warn, info, debug or trace", name)
		}
		if component == "" {
			l.others = level
		} else {
			l.of[component] = level
		}
	}
	return l, nil
}

// most is the level of the component that says most.
func (l levels) most() logrus.Level {
	return slices.Max(append(slices.Collect(maps.Values(l.of)), l.others))
}

func (l levels) level(component string) logrus.Level {
	if level, ok := l.of[component]; ok {
		return level
	}
	return l.others
}

// split gives the components that have a level of their own a logger of their own, beside log: it has everything else in
// common with log, hooks that come later too.
func (l levels) split(log *logrus.Logger, f entryFormatter) {
	f.loggers = map[string]*logrus.Logger{}
	log.SetFormatter(f)
	for component, level := range l.of {
		f.loggers[component] = &logrus.Logger{Out: log.Out, Formatter: f, Hooks: log.Hooks, Level: level, ExitFunc: log.ExitFunc}
	}
}

// Component returns the logger of one component, with its level.
func Component(log *logrus.Logger, name string) *logrus.Entry {
	if f, ok := log.Formatter.(entryFormatter); ok && f.loggers[name] != nil {
		log = f.loggers[name]
	}
	return log.WithField(componentField, name)
}

package logging

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"
)

// levels are the levels of the components.
type levels struct {
	others logrus.Level
	of     map[string]logrus.Level
}

// parseLevels reads "info,kubelet=debug": the level of all components, and those of some. The level without a name may
// be missing, and is info then.
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

// most returns the level of the most verbose component.
func (l levels) most() logrus.Level {
	return slices.Max(append(slices.Collect(maps.Values(l.of)), l.others))
}

func (l levels) level(component string) logrus.Level {
	if level, ok := l.of[component]; ok {
		return level
	}
	return l.others
}

// split gives each component with its own level its own logger, beside log: it shares everything else with log,
// including hooks added later.
func (l levels) split(log *logrus.Logger, f entryFormatter) {
	f.loggers = map[string]*logrus.Logger{}
	log.SetFormatter(f)
	for component, level := range l.of {
		f.loggers[component] = &logrus.Logger{Out: log.Out, Formatter: f, Hooks: log.Hooks, Level: level, ExitFunc: log.ExitFunc}
	}
}

// Component returns the logger of one component, with its level.
func Component(log *logrus.Logger, name string) *logrus.Entry {
	return loggerOf(log, name).WithField(componentField, name)
}

// loggerOf returns the logger that has the component's level.
func loggerOf(log *logrus.Logger, name string) *logrus.Logger {
	if f, ok := log.Formatter.(entryFormatter); ok && f.loggers[name] != nil {
		return f.loggers[name]
	}
	return log
}

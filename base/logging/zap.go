package logging

import (
	"github.com/sirupsen/logrus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Zap returns a zap logger that writes to entry; it keeps entry's component.
func Zap(entry *logrus.Entry) *zap.Logger { return zap.New(core{entry}) }

// core is zap's backend.
type core struct{ entry *logrus.Entry }

var _ zapcore.Core = core{}

func (c core) Enabled(l zapcore.Level) bool { return c.entry.Logger.IsLevelEnabled(fromZap(l)) }

func (c core) With(fields []zapcore.Field) zapcore.Core { return core{c.with(fields)} }

func (c core) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return checked.AddCore(e, c)
	}
	return checked
}

func (c core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	entry := c.with(fields)
	if e.LoggerName != "" {
		entry = entry.WithField("logger", e.LoggerName)
	}
	entry.WithTime(e.Time).Log(fromZap(e.Level), e.Message)
	return nil
}

func (c core) Sync() error { return nil }

func (c core) with(fields []zapcore.Field) *logrus.Entry {
	if len(fields) == 0 {
		return c.entry
	}
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(enc)
	}
	return c.entry.WithFields(enc.Fields)
}

// fromZap maps a level. Levels at which zap panics or exits after the line become errors: zap does that, not logrus.
func fromZap(l zapcore.Level) logrus.Level {
	switch {
	case l >= zapcore.ErrorLevel:
		return logrus.ErrorLevel
	case l == zapcore.WarnLevel:
		return logrus.WarnLevel
	case l == zapcore.InfoLevel:
		return logrus.InfoLevel
	}
	return logrus.DebugLevel
}

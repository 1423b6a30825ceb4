package datadir

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"kubelith.io/kubelith/base/filetree"
)

// TestNamesInSources: what the program's packages join to a data directory is known here, so that reset removes it and
// a directory with it is not another's. It sees filepath.Join(DataDir, "NAME", ...) with literals, not names that a
// variable or another package holds.
func TestNamesInSources(t *testing.T) {
	known := slices.Concat(Made(), Identity(), Dropped())
	isKnown := func(name string) bool {
		return slices.ContainsFunc(known, func(k string) bool { return filetree.Below(k, name) || filetree.Below(name, k) })
	}
	seen := 0
	for _, top := range []string{"base", "cmd", "components", "host", "plugins", "runtime", "trace"} {
		err := filepath.WalkDir(filepath.Join("..", "..", top), func(file string, e fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case e.IsDir() && hasOtherDataDir(file):
				return filepath.SkipDir
			case e.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go"):
				return nil
			}
			tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(tree, func(n ast.Node) bool {
				if name := nameBelowDataDir(n); name != "" {
					if seen++; !isKnown(name) {
						t.Errorf("%s: %s is in none of Made, Identity and Dropped", file, name)
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if seen < 20 || isKnown("unknown") {
		t.Errorf("it has seen %d names: it does not see what it should", seen)
	}
}

// hasOtherDataDir reports whether DataDir is another directory in a folder of sources: etcd's, or that of a plugin.
func hasOtherDataDir(folder string) bool {
	return strings.HasSuffix(folder, "controlplane/etcd") || strings.HasSuffix(folder, "plugins/examples")
}

// nameBelowDataDir returns the literals of filepath.Join(DataDir, LITERAL, ...) as a path; empty for anything else.
func nameBelowDataDir(n ast.Node) string {
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) < 2 {
		return ""
	}
	if f, ok := call.Fun.(*ast.SelectorExpr); !ok || f.Sel.Name != "Join" {
		return ""
	}
	var dir string
	switch first := call.Args[0].(type) {
	case *ast.Ident:
		dir = first.Name
	case *ast.SelectorExpr:
		dir = first.Sel.Name
	}
	if !strings.EqualFold(dir, "dataDir") {
		return ""
	}
	name := ""
	for _, arg := range call.Args[1:] {
		literal, ok := arg.(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING {
			break
		}
		text, err := strconv.Unquote(literal.Value)
		if err != nil {
			break
		}
		name = path.Join(name, text)
	}
	return name
}

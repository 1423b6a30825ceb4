package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"strings"
)

// aggregated serves the smallest API group that kube-aggregator and kubectl accept: version v1 with the
// read-only, cluster-scoped resource "stones" (kind Stone). Each Stone's spec.user is the X-Remote-User header
// that the front proxy sent. The client's certificate is asked for and not verified.
func aggregated(args []string) error {
	flags := flag.NewFlagSet("aggregated", flag.ExitOnError)
	addr := flags.String("addr", ":8443", "address to listen on")
	cert := flags.String("cert", "/certs/tls.crt", "certificate file")
	key := flags.String("key", "/certs/tls.key", "key file")
	group := flags.String("group", "probe.kubelith.io", "API group")
	flags.Parse(args)
	gv := *group + "/v1"
	stone := func(r *http.Request, name string) object {
		return object{
			"apiVersion": gv, "kind": "Stone", "metadata": object{"name": name},
			"spec": object{"user": r.Header.Get("X-Remote-User"), "groups": r.Header.Values("X-Remote-Group")},
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/apis/"+gv, func(w http.ResponseWriter, r *http.Request) {
		answer(w, http.StatusOK, object{"apiVersion": "v1", "kind": "APIResourceList", "groupVersion": gv, "resources": []object{
			{"name": "stones", "singularName": "stone", "namespaced": false, "kind": "Stone", "verbs": []string{"get", "list"}},
		}})
	})
	mux.HandleFunc("/apis/"+*group, func(w http.ResponseWriter, r *http.Request) {
		version := object{"groupVersion": gv, "version": "v1"}
		answer(w, http.StatusOK, object{"apiVersion": "v1", "kind": "APIGroup", "name": *group, "versions": []object{version}, "preferredVersion": version})
	})
	mux.HandleFunc("/apis/"+gv+"/stones", func(w http.ResponseWriter, r *http.Request) {
		answer(w, http.StatusOK, object{"apiVersion": gv, "kind": "StoneList", "metadata": object{"resourceVersion": "1"},
			"items": []object{stone(r, "granite"), stone(r, "basalt")}})
	})
	mux.HandleFunc("/apis/"+gv+"/stones/", func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(r.URL.Path, "/apis/"+gv+"/stones/")
		if name != "granite" && name != "basalt" {
			answer(w, http.StatusNotFound, object{"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "NotFound",
				"message": fmt.Sprintf("stones %q not found", name), "code": 404})
			return
		}
		answer(w, http.StatusOK, stone(r, name))
	})
	// As aggregated API servers do it that bring their own admission: a webhook at the Service default/kubernetes leads
	// here.
	mux.HandleFunc("/apis/"+gv+"/reviews", func(w http.ResponseWriter, r *http.Request) {
		review(w, r, func(object) object { return deny("the stones say no to " + r.Header.Get("X-Remote-User")) })
	})
	fmt.Println("aggregated API", gv, "on", *addr)
	return http.ListenAndServeTLS(*addr, *cert, *key, mux)
}

func answer(w http.ResponseWriter, code int, o object) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(o)
}

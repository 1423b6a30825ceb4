package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
)

// webhook serves admission.k8s.io/v1 reviews over TLS:
//
//	/deny-label  denies objects that carry the label "forbidden"
//
// Each request is printed as "review PATH OPERATION RESOURCE NAMESPACE/NAME".
func webhook(args []string) error {
	flags := flag.NewFlagSet("webhook", flag.ExitOnError)
	addr := flags.String("addr", ":8443", "address to listen on")
	cert := flags.String("cert", "/certs/tls.crt", "certificate file")
	key := flags.String("key", "/certs/tls.key", "key file")
	flags.Parse(args)
	mux := http.NewServeMux()
	mux.HandleFunc("/deny-label", func(w http.ResponseWriter, r *http.Request) { review(w, r, denyLabel) })
	fmt.Println("webhook on", *addr)
	return http.ListenAndServeTLS(*addr, *cert, *key, mux)
}

// object is a JSON object; missing parts read as nil.
type object map[string]any

func (o object) at(path ...string) any {
	var v any = map[string]any(o)
	for _, p := range path {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[p]
	}
	return v
}

func review(w http.ResponseWriter, r *http.Request, decide func(request object) object) {
	var in object
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	request, ok := in["request"].(map[string]any)
	if !ok {
		http.Error(w, "no request in the review", http.StatusBadRequest)
		return
	}
	req := object(request)
	fmt.Println("review", r.URL.Path, req["operation"], req.at("resource", "resource"), fmt.Sprintf("%v/%v", req["namespace"], req["name"]))
	response := decide(req)
	response["uid"] = req["uid"]
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(object{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
}

func deny(message string) object {
	return object{"allowed": false, "status": object{"message": message, "code": 403}}
}

func denyLabel(req object) object {
	if req.at("object", "metadata", "labels", "forbidden") != nil {
		return deny("the label forbidden is forbidden")
	}
	return object{"allowed": true}
}

package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"time"
)

// serviceAccountDir is where the kubelet mounts the token and the cluster's CA.
const serviceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount/"

// serve answers:
//
//	/              JSON {hostname, remote, headers, method, host}
//	/hostname      the hostname alone
//	/healthz       200, or 500 after a request to /fail, until one to /heal
//	/status?code=N an answer with that status
func serve(args []string) error {
	flags := flag.NewFlagSet("serve", flag.ExitOnError)
	addr := flags.String("addr", ":8080", "address to listen on")
	flags.Parse(args)
	hostname, err := os.Hostname()
	if err != nil {
		return err
	}
	var failing atomic.Bool
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		json.NewEncoder(w).Encode(map[string]any{
			"hostname": hostname, "remote": r.RemoteAddr, "headers": r.Header, "method": r.Method, "host": r.Host, "path": r.URL.Path,
		})
	})
	mux.HandleFunc("/hostname", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, hostname) })
	mux.HandleFunc("/fail", func(w http.ResponseWriter, r *http.Request) { failing.Store(true) })
	mux.HandleFunc("/heal", func(w http.ResponseWriter, r *http.Request) { failing.Store(false) })
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) {
		if failing.Load() {
			http.Error(w, "failing", http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, "ok")
	})
	mux.HandleFunc("/status", func(w http.ResponseWriter, r *http.Request) {
		code, err := strconv.Atoi(r.FormValue("code"))
		if err != nil || code < 200 || code > 599 {
			code = http.StatusBadRequest
		}
		w.WriteHeader(code)
	})
	fmt.Println("serving on", *addr)
	return http.ListenAndServe(*addr, mux)
}

// dial sends one request. Without an argument it queries the cluster's own API, as a pod does:
// a URL that begins with / is taken on https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT.
func dial(args []string) error {
	flags := flag.NewFlagSet("dial", flag.ExitOnError)
	token := flags.Bool("token", false, "send the service account's token")
	ca := flags.String("ca", serviceAccountDir+"ca.crt", "CA of the server")
	method := flags.String("method", http.MethodGet, "method")
	timeout := flags.Duration("timeout", 10*time.Second, "for the whole request")
	flags.Parse(args)
	if flags.NArg() != 1 {
		return fmt.Errorf("dial: want one URL")
	}
	url := flags.Arg(0)
	if url[0] == '/' {
		url = "https://" + os.Getenv("KUBERNETES_SERVICE_HOST") + ":" + os.Getenv("KUBERNETES_SERVICE_PORT") + url
	}
	req, err := http.NewRequest(*method, url, nil)
	if err != nil {
		return err
	}
	if *token {
		content, err := os.ReadFile(serviceAccountDir + "token")
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+string(content))
	}
	transport := &http.Transport{}
	if pem, err := os.ReadFile(*ca); err == nil {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(pem)
		transport.TLSClientConfig = &tls.Config{RootCAs: pool}
	}
	resp, err := (&http.Client{Transport: transport, Timeout: *timeout}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	fmt.Println(resp.StatusCode)
	if _, err := io.Copy(os.Stdout, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("status %s", resp.Status)
	}
	return nil
}

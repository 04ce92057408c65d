// Prometheus without what a test does not need: it scrapes the static targets of its configuration into its own storage, and
// answers queries by its own engine. Service discovery, the user interface and everything remote are left out.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"log"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/scrape"
	"github.com/prometheus/prometheus/tsdb"
)

func main() {
	file := flag.String("config.file", "prometheus.yml", "the configuration")
	data := flag.String("storage.tsdb.path", "data", "the folder of the storage")
	address := flag.String("web.listen-address", "127.0.0.1:9090", "where queries are answered")
	flag.Parse()
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	configuration, err := config.LoadFile(*file, false, logger)
	must(err)
	storage, err := tsdb.Open(*data, logger, prometheus.NewRegistry(), tsdb.DefaultOptions(), nil)
	must(err)
	go func() { must(scrapeInto(storage, configuration, logger)) }()
	engine := promql.NewEngine(promql.EngineOpts{
		Logger: logger, MaxSamples: 50_000_000, Timeout: time.Minute, LookbackDelta: 5 * time.Minute,
	})
	http.HandleFunc("/api/v1/query", func(w http.ResponseWriter, r *http.Request) {
		query, err := engine.NewInstantQuery(r.Context(), storage, nil, r.FormValue("query"), time.Now())
		answer(w, r.Context(), query, err)
	})
	http.HandleFunc("/api/v1/query_range", func(w http.ResponseWriter, r *http.Request) {
		start, end, step := seconds(r, "start"), seconds(r, "end"), seconds(r, "step")
		query, err := engine.NewRangeQuery(r.Context(), storage, nil, r.FormValue("query"),
			time.UnixMilli(int64(start*1000)), time.UnixMilli(int64(end*1000)), time.Duration(step*float64(time.Second)))
		answer(w, r.Context(), query, err)
	})
	must(http.ListenAndServe(*address, nil))
}

// Scrapes for ever.
func scrapeInto(storage *tsdb.DB, configuration *config.Config, logger *slog.Logger) error {
	options := &scrape.Options{DiscoveryReloadOnStartup: true}
	manager, err := scrape.NewManager(options, logger, nil, nil, storage, prometheus.NewRegistry())
	if err != nil {
		return err
	}
	if err := manager.ApplyConfig(configuration); err != nil {
		return err
	}
	groups := map[string][]*targetgroup.Group{}
	for _, job := range configuration.ScrapeConfigs {
		for _, found := range job.ServiceDiscoveryConfigs {
			if static, ok := found.(discovery.StaticConfig); ok {
				groups[job.JobName] = append(groups[job.JobName], static...)
			}
		}
	}
	sets := make(chan map[string][]*targetgroup.Group, 1)
	sets <- groups
	return manager.Run(sets)
}

// Answers as Prometheus' own API does.
func answer(w http.ResponseWriter, ctx context.Context, query promql.Query, err error) {
	said := map[string]any{"status": "error"}
	if err == nil {
		defer query.Close()
		result := query.Exec(ctx)
		err = result.Err
		if err == nil {
			data := map[string]any{"resultType": result.Value.Type(), "result": result.Value}
			said = map[string]any{"status": "success", "data": data}
		}
	}
	if err != nil {
		said["error"] = err.Error()
	}
	if err := json.NewEncoder(w).Encode(said); err != nil {
		log.Print(err)
	}
}

func seconds(r *http.Request, name string) float64 {
	value, err := strconv.ParseFloat(r.FormValue(name), 64)
	if err != nil {
		return 0
	}
	return value
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

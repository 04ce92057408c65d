//! `kerf scheduler-config`: prints the configuration of a kube-scheduler that calls kerf's extender.

use crate::connection::KerfNamespace;
use crate::input::InputError;
use crate::output::{self, ObjectFormat};
use clap::Args as ClapArgs;
use kerf_core::resource::all_names;
use kerf_runtime::args::NamespacedName;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;

const SCHEDULER: &str = "kerf-scheduler";
const MAIN_SCHEDULER: &str = "default-scheduler";
const TLS_DIR: &str = "/etc/kerf/extender-tls";

const EXAMPLES: &str = "\
Examples:
  # For the scheduler that the chart installs
  kerf scheduler-config --leader-elect

  # For the cluster's own scheduler, which runs in the host's network
  kerf scheduler-config --scheduler-name default-scheduler --scheduler-name kerf-scheduler --leader-elect \\
    --extender-url https://10.96.0.44:9444/scheduler --lease kube-system/kube-scheduler";

/// How the scheduler reaches the extender.
#[derive(Debug, ClapArgs)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The name that pods give in `spec.schedulerName`; a policy's `schedulerName` must be the same. Several may be
    /// given: the cluster's own scheduler takes kerf-scheduler too, for pods that were made when there was one of that
    /// name.
    #[arg(long = "scheduler-name", default_value = SCHEDULER, value_parser = scheduler_name)]
    scheduler_names: Vec<String>,
    #[command(flatten)]
    kerf: KerfNamespace,
    /// The extender's address, with the verbs' path. Without it the Service's name, as pods call it; a scheduler in the
    /// host's network takes its cluster IP.
    #[arg(long, value_parser = extender_url)]
    extender_url: Option<String>,
    /// The folder where the scheduler finds ca.crt, client.crt and client.key of the extender's Secret.
    #[arg(long, default_value = TLS_DIR)]
    tls_dir: PathBuf,
    /// The scheduler's kubeconfig; without it the scheduler uses its pod's service account.
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// Let several replicas of the scheduler elect a leader.
    #[arg(long)]
    leader_elect: bool,
    /// The Lease by which they do, as namespace/name. Without it that of the first scheduler's name, in kerf's
    /// namespace; the cluster's own has kube-system/kube-scheduler.
    #[arg(long)]
    lease: Option<NamespacedName>,
    /// The form.
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = ObjectFormat::Yaml)]
    output: ObjectFormat,
}

impl Default for Args {
    fn default() -> Self {
        Self {
            scheduler_names: vec![SCHEDULER.to_owned()],
            kerf: KerfNamespace::default(),
            extender_url: None,
            tls_dir: PathBuf::from(TLS_DIR),
            kubeconfig: None,
            leader_elect: true,
            lease: None,
            output: ObjectFormat::Yaml,
        }
    }
}

impl Args {
    /// The arguments for a second scheduler of this name in kerf's namespace, as the chart configures it.
    pub(crate) fn for_second_scheduler(name: &str, namespace: &str) -> Self {
        let kerf = KerfNamespace { name: namespace.to_owned() };
        Self { scheduler_names: vec![name.to_owned()], kerf, ..Self::default() }
    }

    /// The arguments for the cluster's own scheduler, as in the chart's `ConfigMap` `kerf-main-scheduler`.
    pub(crate) fn for_main_scheduler(extender_url: String) -> Self {
        Self {
            scheduler_names: vec![MAIN_SCHEDULER.to_owned(), SCHEDULER.to_owned()],
            extender_url: Some(extender_url),
            tls_dir: PathBuf::from("/etc/kubernetes/kerf"),
            kubeconfig: Some(PathBuf::from("/etc/kubernetes/scheduler.conf")),
            lease: Some(NamespacedName {
                namespace: "kube-system".to_owned(),
                name: "kube-scheduler".to_owned(),
            }),
            ..Self::default()
        }
    }
}

/// Parses a scheduler's name. Any word is accepted, because Kubernetes accepts any name that is not empty.
fn scheduler_name(text: &str) -> Result<String, String> {
    let is_word = !text.is_empty() && !text.contains(char::is_whitespace);
    is_word
        .then(|| text.to_owned())
        .ok_or_else(|| format!("{text:?} is no name of a scheduler; write one word, like {SCHEDULER}"))
}

/// Parses the extender's URL. It needs https and a path, because the extender has a certificate and answers below a
/// path only.
fn extender_url(text: &str) -> Result<String, String> {
    let url = text.parse::<http::Uri>().ok();
    let is_https =
        |url: &http::Uri| url.scheme_str() == Some("https") && url.host().is_some() && url.path() != "/";
    url.filter(is_https).map(|_| text.to_owned()).ok_or_else(|| {
        format!("{text:?} is no address of the extender; write it like https://10.96.0.44:9444/scheduler")
    })
}

fn distinct(args: &Args) -> Result<(), String> {
    let mut names = BTreeSet::new();
    let twice = args.scheduler_names.iter().find(|name| !names.insert(*name));
    twice.map_or(Ok(()), |name| {
        Err(format!(
            "--scheduler-name: {name} is there twice; kube-scheduler takes a name once: leave one out"
        ))
    })
}

pub fn print(args: &Args) -> anyhow::Result<()> {
    distinct(args).map_err(InputError::Bad)?;
    output::write(&args.output.render(&configuration(args))?)
}

pub(crate) fn configuration(args: &Args) -> Value {
    let url = || format!("https://kerf-extender.{}.svc:9444/scheduler", args.kerf.name);
    let lease = args.lease.clone().unwrap_or_else(|| NamespacedName {
        namespace: args.kerf.name.clone(),
        name: args.scheduler_names.first().cloned().unwrap_or_default(),
    });
    let file = |name: &str| args.tls_dir.join(name).display().to_string();
    // The names include those of NVIDIA's device plugin, because on static nodes the extender counts their devices.
    let names = all_names().into_iter().map(|name| name.to_string());
    // kube-scheduler must not count these names itself, because slices are cut on demand and only the extender
    // computes what fits.
    let managed: Vec<Value> = names.map(|name| json!({"name": name, "ignoredByScheduler": true})).collect();
    let profiles: Vec<Value> =
        args.scheduler_names.iter().map(|name| json!({"schedulerName": name})).collect();
    // The default qps of 50 and burst of 100 would throttle a burst of pods.
    let mut connection = json!({"qps": 1000, "burst": 2000});
    if let Some(path) = &args.kubeconfig {
        connection["kubeconfig"] = json!(path);
    }
    json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {
            "leaderElect": args.leader_elect,
            "resourceNamespace": lease.namespace,
            "resourceName": lease.name,
        },
        "clientConnection": connection,
        // All nodes are scored, because the extender ranks every node that can serve the pod, and a sample would hide
        // the best ones.
        "percentageOfNodesToScore": 100,
        "profiles": profiles,
        "extenders": [{
            "urlPrefix": args.extender_url.clone().unwrap_or_else(url),
            "filterVerb": "filter",
            "prioritizeVerb": "prioritize",
            "preemptVerb": "preempt",
            "bindVerb": "bind",
            "weight": 1,
            "nodeCacheCapable": true,
            "ignorable": false,
            // The bind verb may wait for a slice to be cut. The extender's timeout for that is 4 s and must be shorter
            // than this one.
            "httpTimeout": "5s",
            "enableHTTPS": true,
            "tlsConfig": {
                "insecure": false,
                "caFile": file("ca.crt"),
                "certFile": file("client.crt"),
                "keyFile": file("client.key"),
            },
            "managedResources": managed,
        }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn the_deployed_configuration_is_the_printed_one() {
        let args = Cli::parse_from(["kerf", "--leader-elect"]).args;
        let deployed = include_str!("../../deploy/base/scheduler/config.yaml");
        let printed = serde_saphyr::to_string(&configuration(&args)).unwrap();
        assert_eq!(printed, deployed, "run `cargo xtask manifests`");
    }

    #[test]
    fn json_and_yaml_have_the_same_values() {
        for (flags, format) in
            [(&["kerf"][..], ObjectFormat::Yaml), (&["kerf", "-o", "json"], ObjectFormat::Json)]
        {
            let args = Cli::parse_from(flags).args;
            assert_eq!(args.output, format);
            let printed = args.output.render(&configuration(&args)).unwrap();
            assert_eq!(serde_saphyr::from_str::<Value>(&printed).unwrap(), configuration(&args));
        }
    }

    #[test]
    fn unusable_values_are_refused_by_their_flag() {
        let refused = |flags: &[&str]| {
            let parsed = Cli::try_parse_from([&["kerf"], flags].concat());
            parsed.map_err(|error| error.to_string()).and_then(|cli| distinct(&cli.args)).err()
        };
        for flags in [
            &[
                "--extender-url=https://[fd00::44]:9444/scheduler",
                "--scheduler-name=My_Own",
                "--kerf-namespace=gpu-1",
            ][..],
            &["--scheduler-name=a", "--scheduler-name=b"],
        ] {
            assert_eq!(refused(flags), None, "{flags:?}");
        }
        for (flags, remedy) in [
            (&["--extender-url="][..], "write it like https://10.96.0.44:9444/scheduler"),
            (&["--extender-url=nonsense"], "write it like https://"),
            (&["--extender-url=http://10.96.0.44:9444/scheduler"], "write it like https://"),
            (&["--extender-url=https://10.96.0.44:9444"], "write it like https://"),
            (&["--kerf-namespace="], "write lower-case letters"),
            (&["--kerf-namespace=A B"], "write lower-case letters"),
            (&["--kerf-namespace=-a"], "write lower-case letters"),
            (&["--scheduler-name="], "write one word"),
            (&["--scheduler-name=a b"], "write one word"),
            (&["--scheduler-name=a", "--scheduler-name=a"], "kube-scheduler takes a name once"),
        ] {
            let error = refused(flags).unwrap_or_default();
            let flag = flags[0].split('=').next().unwrap_or_default();
            assert!(error.contains(flag) && error.contains(remedy), "{flags:?}: {error}");
        }
    }

    #[test]
    fn the_scheduler_ignores_every_resource_name_of_kerf() {
        let args = Cli::parse_from(["kerf"]).args;
        let managed = configuration(&args)["extenders"][0]["managedResources"].as_array().cloned().unwrap();
        assert_eq!(managed.len(), all_names().len());
        assert!(managed.iter().all(|m| m["ignoredByScheduler"] == true));
    }
}

//! The command lines of etcd, kube-apiserver and kube-controller-manager, and the key files that they read.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::Context as _;
use rcgen::KeyPair;

use super::certificates::Authority;
use super::folder::Folder;
use super::options::{ControlPlaneOptions, ServiceAddresses};
use crate::binaries;
use crate::process::Program;

/// Issuer and audience of service account tokens, as kubeadm sets them.
pub const SERVICE_ACCOUNT_ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// The servers' names in their certificate: tests use loopback addresses, VMs and containers the service's
/// name or address.
const SERVER_NAMES: [&str; 4] = ["localhost", "127.0.0.1", "kubernetes", "kubernetes.default.svc"];

/// Disables the controllers that watch kubelets' leases: nodes of tests have no leases, and would be tainted
/// as not ready after 40 s. It also disables those that write endpoints: pods have loopback addresses, which
/// are not valid endpoints ([`crate::services`] watches the pods instead).
const CONTROLLERS: &str = "*,-node-lifecycle-controller,-node-ipam-controller,-endpoints-controller,\
    -endpointslice-controller,-endpointslice-mirroring-controller";

/// The addresses of Services. [`crate::services`] can listen on each, because all of 127.0.0.0/8 is local.
/// The range is one of 512 parts of 127.96.0.0/11, so that control planes side by side rarely use the same.
fn services(options: &ControlPlaneOptions, apiserver_port: u16) -> ServiceAddresses {
    options.services.clone().unwrap_or_else(|| {
        let part = apiserver_port % 512;
        let third = u8::try_from(part % 16 * 16).unwrap_or_default();
        let first = Ipv4Addr::new(127, 96 + u8::try_from(part / 16).unwrap_or_default(), third, 1);
        let [a, b, c, _] = first.octets();
        ServiceAddresses { range: format!("{a}.{b}.{c}.0/20"), first }
    })
}

/// Writes the authority, the servers' certificate, the API server's client certificate for kubelets, and the
/// signing keys of service accounts.
pub fn write_pki(
    folder: &Folder,
    authority: &Authority,
    apiserver_port: u16,
    options: &ControlPlaneOptions,
) -> anyhow::Result<()> {
    let first = services(options, apiserver_port).first.to_string();
    let names: Vec<&str> = SERVER_NAMES.into_iter().chain([first.as_str()]).collect();
    let server = authority.server(&names)?;
    let to_kubelets = authority.client("kube-apiserver-kubelet-client", Some("system:masters"))?;
    let service_accounts = KeyPair::generate().context("failed to make the service accounts' key")?;
    let files = [
        ("ca.crt", authority.pem()),
        ("server.crt", &server.certificate),
        ("server.key", &server.key),
        ("kubelet-client.crt", &to_kubelets.certificate),
        ("kubelet-client.key", &to_kubelets.key),
        ("service-accounts.pub", &service_accounts.public_key_pem()),
        ("service-accounts.key", &service_accounts.serialize_pem()),
    ];
    for (name, content) in files {
        fs::write(folder.pki().join(name), content).with_context(|| format!("failed to write {name}"))?;
    }
    Ok(())
}

/// etcd without fsync: a test's data need not survive a power failure.
pub fn etcd(folder: &Folder, client_port: u16, peer_port: u16) -> anyhow::Result<Program> {
    let client = format!("http://127.0.0.1:{client_port}");
    let peer = format!("http://127.0.0.1:{peer_port}");
    Ok(Program::new("etcd", binaries::tool("etcd")?, &folder.logs())
        .arg("--unsafe-no-fsync")
        .arg(flag("data-dir", folder.etcd().display()))
        .arg(flag("listen-client-urls", &client))
        .arg(flag("advertise-client-urls", &client))
        .arg(flag("listen-peer-urls", &peer))
        .arg(flag("initial-advertise-peer-urls", &peer))
        .arg(flag("initial-cluster", format_args!("default={peer}")))
        .arg("--log-level=warn"))
}

/// kube-apiserver with the admission plugins of a real cluster, except those that need controllers that do
/// not run.
pub fn apiserver(
    folder: &Folder,
    etcd_port: u16,
    port: u16,
    options: &ControlPlaneOptions,
) -> anyhow::Result<Program> {
    // Without the lifecycle controller, nodes would keep their initial taint; without the controller manager,
    // pods would have no service account.
    let mut disabled = vec!["TaintNodesByCondition"];
    if !options.controller_manager {
        disabled.push("ServiceAccount");
    }
    let pki = folder.pki();
    Ok(serving(Program::new("kube-apiserver", binaries::tool("kube-apiserver")?, &folder.logs()), &pki, port)
        .arg(flag("etcd-servers", format_args!("http://127.0.0.1:{etcd_port}")))
        .arg(flag("cert-dir", pki.display()))
        .arg(flag("client-ca-file", pki.join("ca.crt").display()))
        .arg(flag("service-account-issuer", SERVICE_ACCOUNT_ISSUER))
        .arg(flag("service-account-key-file", pki.join("service-accounts.pub").display()))
        .arg(flag("service-account-signing-key-file", pki.join("service-accounts.key").display()))
        .arg(flag("kubelet-client-certificate", pki.join("kubelet-client.crt").display()))
        .arg(flag("kubelet-client-key", pki.join("kubelet-client.key").display()))
        // Node names do not resolve here.
        .arg("--kubelet-preferred-address-types=InternalIP")
        .arg("--authorization-mode=Node,RBAC")
        .arg(flag("service-cluster-ip-range", services(options, port).range))
        .arg("--allow-privileged=true")
        // No Service leads here, and a loopback address is not a valid endpoint.
        .arg("--endpoint-reconciler-type=none")
        .arg(flag("disable-admission-plugins", disabled.join(",")))
        .arg(flag("enable-priority-and-fairness", options.priority_and_fairness))
        .args(&options.apiserver_flags))
}

/// kube-controller-manager with a rate limit that does not slow tests down; its default is 20 requests per
/// second.
pub fn controller_manager(folder: &Folder, port: u16, kubeconfig: &Path) -> anyhow::Result<Program> {
    let name = "kube-controller-manager";
    let pki = folder.pki();
    Ok(serving(Program::new(name, binaries::tool(name)?, &folder.logs()), &pki, port)
        .args(open_paths())
        .arg(flag("kubeconfig", kubeconfig.display()))
        .arg("--leader-elect=false")
        // Each controller uses its own account and role, so that admission sees which one creates a pod.
        .arg("--use-service-account-credentials=true")
        .arg("--kube-api-qps=1000")
        .arg("--kube-api-burst=2000")
        .arg(flag("controllers", CONTROLLERS))
        .arg(flag("root-ca-file", pki.join("ca.crt").display()))
        .arg(flag("service-account-private-key-file", pki.join("service-accounts.key").display())))
}

/// The serving flags that all three Kubernetes servers share.
pub fn serving(program: Program, pki: &Path, port: u16) -> Program {
    program
        .arg("--bind-address=127.0.0.1")
        .arg(flag("secure-port", port))
        .arg(flag("tls-cert-file", pki.join("server.crt").display()))
        .arg(flag("tls-private-key-file", pki.join("server.key").display()))
}

/// Serves health and metrics to every local client; scheduler and controller manager would otherwise
/// authorize each through the API server.
pub fn open_paths() -> [String; 1] {
    [flag("authorization-always-allow-paths", "/healthz,/readyz,/livez,/metrics,/metrics/resources,/configz")]
}

pub fn flag(name: &str, value: impl std::fmt::Display) -> String {
    format!("--{name}={value}")
}

//! The kubelet's two gRPC APIs as types, clients and servers, and the constants that they rest on.
//!
//! This module only defines what goes over the wire. The modules that use it decide what is listed, allocated or
//! registered. The generated code comes from `proto/*.proto` through `build.rs`.

/// The device plugin API `v1beta1`: the kubelet serves `Registration`, a plugin serves `DevicePlugin`.
#[expect(
    clippy::allow_attributes_without_reason,
    clippy::pedantic,
    reason = "generated code: the .proto files are the documentation"
)]
pub mod deviceplugin {
    tonic::include_proto!("v1beta1");
}

/// The pod-resources API `v1`: which container holds which devices, and what the kubelet can allocate.
#[expect(
    clippy::allow_attributes_without_reason,
    clippy::pedantic,
    reason = "generated code: the .proto files are the documentation"
)]
pub mod podresources {
    tonic::include_proto!("v1");
}

/// The only version of the device plugin API that kubelets accept (kubernetes v1.36,
/// `staging/src/k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/constants.go`).
pub const API_VERSION: &str = "v1beta1";

/// `Device.health` of a device that the kubelet may allocate (same source).
pub const HEALTHY: &str = "Healthy";

/// `Device.health` of a device that the kubelet counts but does not allocate (same source).
pub const UNHEALTHY: &str = "Unhealthy";

/// File name of the kubelet's socket, in the device plugin folder and in the pod-resources folder alike
/// (same source, and `pkg/kubelet/kubelet.go` with `pkg/kubelet/apis/podresources`).
pub const KUBELET_SOCKET: &str = "kubelet.sock";

/// Folder of the device plugins' sockets, fixed in the kubelet's source: it does not follow `--root-dir`.
pub const DEVICE_PLUGIN_DIR: &str = "/var/lib/kubelet/device-plugins";

/// Longest device ID, in bytes, that the API's documentation allows.
#[cfg(test)]
pub(crate) const DEVICE_ID_MAX_BYTES: usize = 63;

/// Requests a second that the kubelet serves on the pod-resources socket, all callers together
/// (kubernetes v1.36, `pkg/kubelet/apis/podresources/grpc/ratelimit.go`).
pub const POD_RESOURCES_QPS: u32 = 100;

/// Requests that the same limit lets through at once.
pub const POD_RESOURCES_BURST: u32 = 10;

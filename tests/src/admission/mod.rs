//! The webhook's replicas as processes behind a proxy, under a load of admissions, as a Deployment behind a
//! Service has it. No agent runs here; a test that needs an inventory writes `GpuNodes` itself.

mod allowing;
mod inventory;
mod load;
mod outage;
mod proxy;
mod scene;
mod secret_volume;

pub use allowing::AllowingWebhook;
pub use inventory::create_gpu_nodes;
pub use load::{Load, Sample, asking, failures, plain};
pub use outage::{
    HungWebhook, annotated, limited, match_condition, of_kerf, of_others, pod_of, set_match_condition,
};
pub use proxy::AdmissionProxy;
pub use scene::{AdmissionScene, Replica};
pub use secret_volume::SecretVolume;

//! The webhook's replicas as processes behind a proxy, under a load of admissions: what a Deployment, a Service and a
//! cluster's users are to it. Knows nothing of GPUs' agents: the inventory is written by hand where one is wanted.

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

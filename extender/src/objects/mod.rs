//! The parts of Kubernetes objects that are read.
//!
//! | module | what is in it |
//! |---|---|
//! | [`pod`], [`ask`], [`template`] | a pod, its request, and what it shares with pods of its template |
//! | [`compute`] | CPU and memory of pods and nodes |
//! | [`node_view`] | a Node |
//! | [`gpu_node_view`] | a GpuNode |
//! | [`metadata`] | any object's metadata |

pub mod ask;
pub mod compute;
pub mod gpu_node_view;
pub mod metadata;
pub mod node_view;
pub mod pod;
pub mod template;

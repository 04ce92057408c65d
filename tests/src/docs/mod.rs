//! The documentation's pages, with the parts that tests can check: code blocks and links.
//!
//! The role of a block is in the first line of its fence, after the language, where readers do not see it:
//!
//! | fence | what tests do with it |
//! |---|---|
//! | `sh` | run on a local cluster, in the order of the page |
//! | `sh when=end` | run after everything else, because it removes kerf |
//! | `sh on=api-server` | run on an API server where nothing else runs; `NODE`, `NAME` and `SELECTOR` are replaced |
//! | `sh elsewhere=WHERE` | not run here, for one of the reasons of [`Elsewhere`]; its commands must exist with these flags |
//! | `yaml` | whole manifests or policies: the API server or `kerf policy check` must accept them |
//! | `yaml elsewhere=cluster` | manifests of kinds that other projects define: parsed, not applied |
//! | `yaml part-of=WHAT` | completed to an otherwise empty [`Whole`], which must be accepted |
//! | `json`, `mermaid`, `promql`, `text`, `toml` | shown |

mod block;
mod page;

pub use block::{Block, Elsewhere, Role, UnknownFence, Whole};
pub use page::{Page, pages};

//! The pages of the documentation, as far as a machine can hold them to the truth: their code blocks and their links.
//!
//! What a block is stands in the first line of its fence, behind the language, where readers do not see it:
//!
//! | fence | what becomes of it |
//! |---|---|
//! | `sh` | run on a local cluster, in the order of the page |
//! | `sh when=end` | run after everything else: it takes kerf away |
//! | `sh on=api-server` | run on an API server where nothing else runs; `NODE`, `NAME` and `SELECTOR` are replaced |
//! | `sh elsewhere=WHERE` | not run here, for one of the reasons of [`Elsewhere`]; its commands must exist with these flags |
//! | `yaml` | whole manifests or policies: taken by the API server, or by `kerf policy check` |
//! | `yaml elsewhere=cluster` | manifests of kinds that other projects define: read, and not applied |
//! | `yaml part-of=WHAT` | put into an empty [`Whole`], and then taken |
//! | `json`, `promql`, `text` | shown |

mod block;
mod page;

pub use block::{Block, Elsewhere, Role, UnknownFence, Whole};
pub use page::{Page, pages};

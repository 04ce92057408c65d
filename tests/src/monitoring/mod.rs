//! kerf's metrics as an admin sees them: Prometheus scrapes the programs as `deploy/monitoring` says, and answers the queries of
//! the dashboard.

mod dashboard;
mod load;
mod picture;
mod prometheus;

pub use dashboard::{Dashboard, Panel, Target};
pub use load::Load;
pub use picture::{Drawn, picture};
pub use prometheus::{Buckets, Prometheus, Scraped, Series, scraped};

//! kerf's metrics as an admin uses them: Prometheus scrapes the programs as `deploy/monitoring` configures
//! it, and answers the dashboard's queries.

mod dashboard;
mod load;
mod picture;
mod prometheus;

pub use dashboard::{Dashboard, Panel, Target};
pub use load::Load;
pub use picture::{Drawn, picture};
pub use prometheus::{Buckets, Prometheus, Scraped, Series, scraped};

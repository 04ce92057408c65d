//! The documentation is true: its links lead somewhere, its commands run, its manifests are accepted.

mod api_server;
mod commands;
mod images;
mod links;
mod manifests;
mod reader;
mod untested;

//! What the documentation says is so: its links lead somewhere, its commands run, its manifests are taken.

mod api_server;
mod commands;
mod images;
mod links;
mod manifests;
mod reader;
mod untested;

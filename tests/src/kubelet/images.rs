//! Images of containers: programs that were built on this machine.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use crate::container_root::{Mount, PROGRAMS};

#[derive(Debug, Clone, Default)]
pub struct Image {
    /// Programs by their names in PATH.
    programs: BTreeMap<String, PathBuf>,
    entrypoint: Vec<String>,
    environment: BTreeMap<String, String>,
    files: Vec<Mount>,
    wildcards: Vec<String>,
}

impl Image {
    #[must_use]
    pub fn running(program: impl Into<PathBuf>) -> Self {
        let program = program.into();
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Self { entrypoint: vec![name.clone()], ..Self::default() }.with_program(&name, program)
    }

    #[must_use]
    pub fn with_program(mut self, name: &str, program: impl Into<PathBuf>) -> Self {
        self.programs.insert(name.to_owned(), program.into());
        self
    }

    #[must_use]
    pub fn with_arguments(mut self, arguments: &[&str]) -> Self {
        self.entrypoint.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        self
    }

    #[must_use]
    pub fn with_variable(mut self, name: &str, value: impl Into<String>) -> Self {
        self.environment.insert(name.to_owned(), value.into());
        self
    }

    /// Adds a file or folder of this machine, which the container may write to.
    #[must_use]
    pub fn with_file(mut self, source: impl Into<PathBuf>, target: &str) -> Self {
        self.files.push(Mount { source: source.into(), target: target.into(), read_only: false });
        self
    }

    /// Adds flags for the entrypoint's program, such as `--address=0.0.0.0:9443`, that state its default of
    /// listening on all addresses. They are used unless given, because there are no network namespaces here
    /// and the address must become the pod's.
    #[must_use]
    pub fn with_wildcards(mut self, flags: &[&str]) -> Self {
        self.wildcards.extend(flags.iter().map(|flag| (*flag).to_owned()));
        self
    }

    pub(super) fn environment(&self) -> &BTreeMap<String, String> {
        &self.environment
    }

    /// The programs and files that it adds to the container's file system.
    pub(super) fn mounts(&self) -> impl Iterator<Item = Mount> {
        let programs = self.programs.iter().map(|(name, program)| Mount {
            source: program.clone(),
            target: Path::new(PROGRAMS).join(name),
            read_only: true,
        });
        programs.chain(self.files.iter().cloned())
    }

    /// The command line of a container. A command replaces the entrypoint with its arguments.
    pub(super) fn command(&self, command: &[String], arguments: &[String], address: Ipv4Addr) -> Vec<String> {
        let first = if command.is_empty() { &self.entrypoint } else { command };
        let mut line: Vec<String> = first.iter().chain(arguments).cloned().collect();
        let program = line.first().and_then(|program| program.rsplit('/').next());
        if program == self.entrypoint.first().map(String::as_str) {
            let missing = self.wildcards.iter().filter(|flag| !has_flag(&line, flag)).cloned();
            line.extend(missing.collect::<Vec<_>>());
        }
        line.iter().map(|argument| on_address(argument, address)).collect()
    }
}

fn has_flag(line: &[String], flag: &str) -> bool {
    let name = flag.split('=').next().unwrap_or_default();
    line.iter()
        .any(|given| given.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('=')))
}

/// Replaces all addresses by the pod's in an argument or variable: `0.0.0.0:80`, `[::]:80`, and in flags
/// `:80`, as Go writes it.
pub(super) fn on_address(text: &str, address: Ipv4Addr) -> String {
    let at = text.find('=').filter(|_| text.starts_with('-')).map_or(0, |at| at + 1);
    let (flag, value) = text.split_at(at);
    let is_port = |rest: &str| rest.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    let all = ["0.0.0.0", "[::]"].into_iter().find_map(|all| value.strip_prefix(all));
    match all {
        Some(rest) if rest.is_empty() || is_port(rest) => format!("{flag}{address}{rest}"),
        None if at > 0 && is_port(value) => format!("{flag}{address}{value}"),
        _ => text.to_owned(),
    }
}

/// Images by their names without registry, tag and digest.
#[derive(Debug, Clone, Default)]
pub struct Images {
    by_name: BTreeMap<String, Image>,
}

impl Images {
    /// Adds an image, or replaces the one of this name.
    pub fn add(&mut self, name: &str, image: Image) {
        self.by_name.insert(name.to_owned(), image);
    }

    /// The image of a container's `image` field.
    pub(super) fn find(&self, reference: &str) -> Option<&Image> {
        self.by_name.get(name(reference))
    }
}

fn name(reference: &str) -> &str {
    let undigested = reference.split('@').next().unwrap_or_default();
    let last = undigested.rsplit('/').next().unwrap_or_default();
    last.split(':').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: Ipv4Addr = Ipv4Addr::new(127, 64, 1, 2);

    fn line(image: &Image, command: &[&str], arguments: &[&str]) -> String {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        image.command(&owned(command), &owned(arguments), POD).join(" ")
    }

    #[test]
    fn an_image_is_known_by_the_last_part_of_its_name() {
        for reference in ["a", "a:1", "r.io:5000/x/a", "r.io/a:v1@sha256:00", "a@sha256:00"] {
            assert_eq!(name(reference), "a", "{reference}");
        }
    }

    #[test]
    fn a_command_stands_for_the_entrypoint_and_its_arguments() {
        let image = Image::running("/b/serve").with_arguments(&["--simulated"]);
        assert_eq!(line(&image, &[], &[]), "serve --simulated");
        assert_eq!(line(&image, &[], &["-v"]), "serve --simulated -v");
        assert_eq!(line(&image, &["sh", "-c"], &["true"]), "sh -c true");
        assert_eq!(line(&image, &["serve"], &[]), "serve");
    }

    #[test]
    fn all_addresses_are_the_pods() {
        for (text, expected) in [
            ("--address=0.0.0.0:9443", "--address=127.64.1.2:9443"),
            ("--address=[::]:9443", "--address=127.64.1.2:9443"),
            ("--metrics-addr=:8080", "--metrics-addr=127.64.1.2:8080"),
            ("0.0.0.0", "127.64.1.2"),
            (":80", ":80"),
            ("--cidr=0.0.0.0/0", "--cidr=0.0.0.0/0"),
            ("--address=10.0.0.0:1", "--address=10.0.0.0:1"),
            ("--time=12:30", "--time=12:30"),
            ("a=0.0.0.0:1", "a=0.0.0.0:1"),
        ] {
            assert_eq!(on_address(text, POD), expected, "{text}");
        }
    }

    #[test]
    fn defaults_that_listen_everywhere_are_said_unless_something_else_is() {
        let image = Image::running("serve").with_wildcards(&["--address=0.0.0.0:1", "--admin=0.0.0.0:2"]);
        assert_eq!(line(&image, &[], &[]), "serve --address=127.64.1.2:1 --admin=127.64.1.2:2");
        assert_eq!(line(&image, &[], &["--admin", "h:3"]), "serve --admin h:3 --address=127.64.1.2:1");
        assert_eq!(
            line(&image, &["/bin/serve"], &["--address=h:4", "--admin=h:5"]),
            "/bin/serve --address=h:4 --admin=h:5"
        );
        assert_eq!(line(&image, &["other"], &[]), "other");
    }
}

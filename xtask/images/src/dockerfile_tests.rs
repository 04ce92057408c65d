//! Tests that the Dockerfiles in `deploy/images` build what the table says.

use std::path::Path;

use clap::ValueEnum as _;

use crate::catalog::{Image, Linkage, PROGRAMS};
use crate::content::{GROUP, PASSWD};
use crate::release::VERSION;

/// The instructions and their arguments, with continued lines joined.
fn instructions(name: &str) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let text = std::fs::read_to_string(root.join(format!("deploy/images/{name}.Dockerfile"))).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let joined = lines.join("\n").replace("\\\n", " ");
    let split = joined.lines().filter_map(|line| line.split_once(' '));
    split
        .map(|(word, rest)| (word.to_owned(), rest.split_whitespace().collect::<Vec<_>>().join(" ")))
        .collect()
}

/// The arguments of an instruction in the stage that becomes the image.
fn last_stage<'a>(instructions: &'a [(String, String)], word: &str) -> Vec<&'a str> {
    let from = instructions.iter().rposition(|(word, _)| word == "FROM").unwrap();
    instructions[from..].iter().filter(|(w, _)| w == word).map(|(_, rest)| rest.as_str()).collect()
}

#[test]
fn a_dockerfile_makes_what_the_table_says() {
    for image in Image::ALL {
        let table = image.description();
        let instructions = instructions(table.name);
        let of = |word| last_stage(&instructions, word);
        assert_eq!(of("ENTRYPOINT"), [format!("[\"{}\"]", table.entrypoint())], "{}", table.name);
        assert_eq!(of("USER"), [table.user.ids()], "{}", table.name);
        let ports = table.ports.iter().map(u16::to_string).collect::<Vec<_>>().join(" ");
        assert_eq!(of("EXPOSE").join(" "), ports, "{}", table.name);
        let environment: Vec<String> =
            table.environment().iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(of("ENV"), environment, "{}", table.name);
        let base = match table.linkage {
            Linkage::Static => "scratch",
            Linkage::Dynamic => "gcr.io/distroless/cc-debian12",
        };
        assert_eq!(of("FROM"), [base], "{}", table.name);
    }
}

#[test]
fn a_dockerfile_holds_the_program_that_it_built_and_nothing_else() {
    for image in Image::ALL {
        let table = image.description();
        let instructions = instructions(table.name);
        assert_eq!(last_stage(&instructions, "COPY"), ["--from=build /image/ /"], "{}", table.name);
        let runs: Vec<&str> =
            instructions.iter().filter(|(word, _)| word == "RUN").map(|(_, rest)| rest.as_str()).collect();
        let made = |part: &str| runs.iter().any(|run| run.contains(part));
        let mut wanted = vec![
            format!("--profile {} ", table.profile),
            format!("--package {} --bin {} ", table.package, table.program),
            format!("/{}/{}\" /image{}", table.profile, table.program, table.entrypoint()),
            "/image/usr/share/doc/kerf/LICENSE".to_owned(),
        ];
        wanted
            .extend(table.also.iter().map(|name| format!("ln -s {} /image{PROGRAMS}/{name}", table.program)));
        if let Some(beside) = table.beside {
            wanted.push(format!("--package {} --bin {} ", beside.package, beside.program));
            wanted
                .push(format!("/{}/{}\" /image{PROGRAMS}/{}", table.profile, beside.program, beside.program));
        }
        for part in wanted {
            assert!(made(&part), "{}: no RUN has {part}", table.name);
        }
        let is_static = table.linkage == Linkage::Static;
        assert_eq!(made("-unknown-linux-musl"), is_static || table.beside.is_some(), "{}", table.name);
        let accounts = [PASSWD, GROUP].map(|text| made(&format!("'{}'", text.replace('\n', "\\n"))));
        assert_eq!(accounts, [is_static; 2], "{}", table.name);
    }
}

#[test]
fn a_dockerfile_labels_its_image() {
    for image in Image::ALL {
        let table = image.description();
        let instructions = instructions(table.name);
        let labels = last_stage(&instructions, "LABEL").join(" ");
        for key in ["version=$VERSION", "revision=$REVISION", "source=$SOURCE", "created=$CREATED"] {
            assert!(
                labels.contains(&format!("org.opencontainers.image.{key}")),
                "{} lacks {key}",
                table.name
            );
        }
        for text in [table.title, table.purpose, env!("CARGO_PKG_LICENSE")] {
            assert!(labels.contains(&format!("=\"{text}\"")), "{} lacks {text}", table.name);
        }
        let version = format!("VERSION={VERSION}");
        assert!(
            last_stage(&instructions, "ARG").contains(&version.as_str()),
            "{} is of another version",
            table.name
        );
    }
}

#[test]
fn images_are_asked_for_by_their_names() {
    for image in Image::ALL {
        assert_eq!(image.to_possible_value().unwrap().get_name(), image.description().name);
    }
}

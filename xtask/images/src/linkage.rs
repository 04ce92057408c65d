//! Reads a program's needs at run time from its ELF file, so that no image is written that lacks a library.

use anyhow::{Context as _, bail, ensure};
use object::Endianness;
use object::elf;
use object::read::elf::{Dyn as _, ElfFile64, FileHeader as _, ProgramHeader as _};

use crate::catalog::Linkage;

#[derive(Debug, PartialEq, Eq)]
pub struct Needs {
    /// The loader's path; `None` for a static program.
    pub loader: Option<String>,
    pub libraries: Vec<String>,
}

impl Needs {
    pub fn from_elf(program: &[u8]) -> anyhow::Result<Self> {
        let file =
            ElfFile64::<Endianness>::parse(program).context("the program is no ELF file of 64 bits")?;
        let (endian, header) = (file.endian(), file.elf_header());
        let sections = header.sections(endian, program)?;
        let mut needs = Self { loader: None, libraries: Vec::new() };
        for segment in header.program_headers(endian, program)? {
            if let Some(path) = segment.interpreter(endian, program)? {
                needs.loader = Some(String::from_utf8(path.to_vec())?);
            }
        }
        let Some((entries, link)) = sections.dynamic(endian, program)? else { return Ok(needs) };
        let strings = sections.strings(endian, program, link)?;
        for entry in entries.iter().filter(|entry| entry.tag(endian) == elf::DT_NEEDED) {
            needs.libraries.push(String::from_utf8(entry.string(endian, strings)?.to_vec())?);
        }
        Ok(needs)
    }

    pub fn check(&self, linkage: Linkage, loader: &str, libraries: &[&str]) -> anyhow::Result<()> {
        match linkage {
            Linkage::Static => {
                ensure!(
                    self.loader.is_none() && self.libraries.is_empty(),
                    "the program is not static: it asks for {:?} and {:?}, and its image has neither",
                    self.loader,
                    self.libraries
                );
            }
            Linkage::Dynamic => {
                let Some(asked) = &self.loader else {
                    bail!("the program is static, and could not open NVML: build it for a gnu target")
                };
                ensure!(
                    asked == loader,
                    "the program asks for the loader {asked}, and its image has {loader}"
                );
                let lacks = self
                    .libraries
                    .iter()
                    .find(|name| !libraries.contains(&name.as_str()) && !loader.ends_with(*name));
                if let Some(name) = lacks {
                    bail!(
                        "the program asks for {name}, which its image lacks: add it to the list in system.rs"
                    );
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

    #[test]
    fn this_program_needs_a_loader_and_glibc() {
        let needs = Needs::from_elf(&std::fs::read(std::env::current_exe().unwrap()).unwrap()).unwrap();
        assert!(needs.loader.is_some_and(|loader| loader.contains("ld-linux")));
        assert!(needs.libraries.contains(&"libc.so.6".to_owned()));
    }

    #[test]
    fn a_program_that_could_not_start_is_refused() {
        let needs = |loader: Option<&str>, libraries: &[&str]| Needs {
            loader: loader.map(str::to_owned),
            libraries: libraries.iter().map(|&name| name.to_owned()).collect(),
        };
        let check = |needs: Needs, linkage| needs.check(linkage, LOADER, &["libc.so.6"]);
        check(needs(None, &[]), Linkage::Static).unwrap();
        check(needs(Some(LOADER), &["libc.so.6", "ld-linux-x86-64.so.2"]), Linkage::Dynamic).unwrap();
        let refused = [
            (needs(Some(LOADER), &["libc.so.6"]), Linkage::Static, "not static"),
            (needs(None, &[]), Linkage::Dynamic, "could not open NVML"),
            (needs(Some("/lib/ld-musl-x86_64.so.1"), &[]), Linkage::Dynamic, "the loader /lib/ld-musl"),
            (needs(Some(LOADER), &["libssl.so.3"]), Linkage::Dynamic, "libssl.so.3"),
        ];
        for (needs, linkage, word) in refused {
            let error = check(needs, linkage).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}

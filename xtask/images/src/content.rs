//! The content of an image: the program and what it needs to run. No shell, no package manager.

use crate::catalog::Description;
use crate::system::{Copied, System};
use crate::tree::Tree;

pub const PASSWD: &str =
    "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n";
pub const GROUP: &str = "root:x:0:\nnonroot:x:65532:\n";

/// Without this file glibc would try other sources of names first.
const NSSWITCH: &str = "passwd: files\ngroup: files\nhosts: files dns\n";

const LICENCE: &str = "/usr/share/doc/kerf/LICENSE";

/// Links for a merged `/usr`, as on the system from which the libraries come.
const LINKS: [&str; 4] = ["bin", "lib", "lib64", "sbin"];

pub fn tree(
    image: &Description,
    program: Vec<u8>,
    beside: Option<Vec<u8>>,
    licence: Vec<u8>,
    system: Option<&System>,
) -> anyhow::Result<Tree> {
    let mut tree = Tree::default();
    tree.file("/etc/passwd", PASSWD.into())?;
    tree.file("/etc/group", GROUP.into())?;
    tree.folder("/tmp", 0o1777)?;
    tree.program(&image.entrypoint(), program)?;
    if let (Some(other), Some(content)) = (image.beside, beside) {
        tree.program(&format!("{}/{}", crate::catalog::PROGRAMS, other.program), content)?;
    }
    for name in image.also {
        tree.link(&format!("{}/{name}", crate::catalog::PROGRAMS), image.program)?;
    }
    tree.file(LICENCE, licence)?;
    let Some(system) = system else { return Ok(tree) };
    for name in LINKS {
        tree.link(name, &format!("usr/{name}"))?;
    }
    tree.folder("/usr/sbin", 0o755)?;
    tree.folder("/usr/lib64", 0o755)?;
    tree.file("/etc/nsswitch.conf", NSSWITCH.into())?;
    for Copied { path, content } in &system.libraries {
        tree.program(path, content.clone())?;
    }
    for Copied { path, content } in &system.documents {
        tree.file(path, content.clone())?;
    }
    Ok(tree)
}

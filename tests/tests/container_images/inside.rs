//! An image's file system, unpacked, and programs that see nothing else.

use std::env::consts::ARCH;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::archive::Image;

pub struct Root(TempDir);

impl Root {
    /// Unpacks in a process of its own. Otherwise a fork of another test could hold a file of this process open for
    /// writing, and the kernel does not execute such a file.
    pub fn unpack(image: &Image) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut tar = Command::new("tar");
        tar.args(["--extract", "--no-same-owner", "--directory"]).arg(folder.path()).stdin(Stdio::piped());
        let mut tar = tar.spawn().unwrap();
        tar.stdin.take().unwrap().write_all(&image.layer()).unwrap();
        assert!(tar.wait().unwrap().success());
        Self(folder)
    }

    /// The path of an image's file on this machine.
    pub fn path(&self, path: &str) -> PathBuf {
        self.0.path().canonicalize().unwrap().join(path)
    }

    /// Adds a file, as a mount would.
    pub fn write(&self, path: &str, content: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// The output of a program that runs to its end.
    pub fn run(&self, program: &str, arguments: &[&str], environment: &[(String, String)]) -> String {
        let output = self.command(program, arguments, environment).output().unwrap();
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts a program that does not end by itself.
    pub fn start(&self, program: &str, arguments: &[&str], environment: &[(String, String)]) -> Child {
        let log = fs::File::create(self.path("log")).unwrap();
        let mut command = self.command(program, arguments, environment);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap()
    }

    /// A program with the image as its root, and nothing of this process's environment.
    pub fn command(&self, program: &str, arguments: &[&str], environment: &[(String, String)]) -> Command {
        let mut command = if rustix::process::geteuid().is_root() {
            let mut command = Command::new("chroot");
            command.arg(self.0.path());
            command
        } else {
            // Without root rights, a user namespace of its own gives them.
            let mut command = Command::new("unshare");
            command.args(["--user", "--map-root-user", "--root"]).arg(self.0.path());
            command
        };
        command.arg(program).args(arguments).env_clear().envs(environment.iter().cloned());
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
    }
}

/// The mappings of a process, once they are as wished; ends the process.
pub fn maps(root: &Root, mut child: Child, wished: impl Fn(&str) -> bool, timeout: Duration) -> String {
    let path = format!("/proc/{}/maps", child.id());
    let deadline = Instant::now() + timeout;
    let maps = loop {
        let maps = fs::read_to_string(Path::new(&path)).unwrap_or_default();
        let over = child.try_wait().unwrap().is_some() || Instant::now() > deadline;
        if over || wished(&maps) {
            break maps;
        }
        thread::sleep(Duration::from_millis(20));
    };
    let _ = child.kill();
    child.wait().unwrap();
    let log = fs::read_to_string(root.path("log")).unwrap_or_default();
    assert!(wished(&maps), "the program has mapped {maps} and says {log}");
    maps
}

/// A server with one answer, for as long as the test runs. Returns its address.
pub fn answer_all_with(document: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut line = String::from("request");
            while !line.trim().is_empty() {
                line.clear();
                let _ = stream.read_line(&mut line);
            }
            let length = document.len();
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
            );
            let _ = stream.get_mut().write_all(format!("{head}{document}").as_bytes());
        }
    });
    address
}

/// The files of the build machine that a dynamic program's image contains.
pub fn of_the_system() -> Vec<String> {
    let loader =
        if ARCH == "x86_64" { "usr/lib64/ld-linux-x86-64.so.2" } else { "usr/lib/ld-linux-aarch64.so.1" };
    let libraries =
        ["libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1"];
    let documents = [
        "bin",
        "etc/debian_version",
        "etc/nsswitch.conf",
        "etc/os-release",
        "lib",
        "lib64",
        "sbin",
        "usr/sbin/",
        "usr/share/common-licenses/GPL-2",
        "usr/share/common-licenses/GPL-3",
        "usr/share/common-licenses/LGPL-2.1",
        "usr/share/doc/libc6/copyright",
        "usr/share/doc/libgcc-s1/copyright",
        "var/lib/dpkg/status.d/libc6",
        "var/lib/dpkg/status.d/libgcc-s1",
    ];
    let libraries = libraries.map(|library| format!("usr/lib/{ARCH}-linux-gnu/{library}"));
    documents.map(str::to_owned).into_iter().chain(libraries).chain([loader.to_owned()]).collect()
}

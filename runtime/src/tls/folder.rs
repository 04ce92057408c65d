//! Certificates from another issuer in a folder: a mounted Secret that cert-manager fills.

use super::inspect::{Unfit, life_of_pem, pair, verify_server};
use super::{Content, Material, TlsError, key};
use jiff::Timestamp;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The kubelet renews all files of a mounted Secret at once by swapping this link (Kubernetes' atomic writer).
const CURRENT: &str = "..data";

/// A folder with `tls.crt`, `tls.key` and usually `ca.crt`.
#[derive(Debug, Clone)]
pub struct TlsFolder {
    dir: PathBuf,
    names: Vec<String>,
}

impl TlsFolder {
    /// The folder `dir`, whose certificate must be valid for all `names`.
    #[must_use]
    pub fn new(dir: PathBuf, names: Vec<String>) -> Self {
        Self { dir, names }
    }

    /// Reads the certificates, and checks that they are valid now and for the names.
    pub fn read(&self, now: Timestamp) -> Result<Material, TlsError> {
        let content = self.content()?;
        let unfit = |source| TlsError::Folder { dir: self.dir.clone(), source: Box::new(source) };
        let text = |what: &'static str| content.get(what).cloned().ok_or(Unfit::Missing(what)).map_err(unfit);
        let material = Material {
            ca_pem: content.get(key::CA_CERT).cloned().unwrap_or_default(),
            server_cert_pem: text(key::SERVER_CERT)?,
            server_key_pem: text(key::SERVER_KEY)?,
            client_cert_pem: None,
            client_key_pem: None,
        };
        pair(&content, key::SERVER_CERT, key::SERVER_KEY).map_err(unfit)?;
        let life = life_of_pem(key::SERVER_CERT, &material.server_cert_pem)?;
        if now < life.begin || life.end <= now {
            let (begin, end) = (life.begin, life.end);
            return Err(unfit(Unfit::Ended { what: key::SERVER_CERT, begin, end }));
        }
        // Without an authority the names are not checked here, because an issuer of public certificates gives none. Only
        // the API server can check them then.
        if !material.ca_pem.is_empty() {
            verify_server(&material.ca_pem, &material.server_cert_pem, &self.names, now).map_err(unfit)?;
        }
        Ok(material)
    }

    /// The texts of the files. All are read through one resolved link, so that they belong together.
    fn content(&self) -> Result<Content, TlsError> {
        let current = self.dir.join(CURRENT);
        let dir = current.canonicalize().unwrap_or_else(|_| self.dir.clone());
        let mut content = Content::new();
        for name in [key::CA_CERT, key::SERVER_CERT, key::SERVER_KEY] {
            if let Some(text) = read(&dir.join(name))? {
                content.insert(name.to_owned(), text);
            }
        }
        Ok(content)
    }
}

fn read(path: &Path) -> Result<Option<String>, TlsError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TlsError::File { path: path.to_owned(), source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::made_for_test;

    fn write(dir: &Path, material: &Material) {
        std::fs::write(dir.join("tls.crt"), &material.server_cert_pem).unwrap();
        std::fs::write(dir.join("tls.key"), &material.server_key_pem).unwrap();
        std::fs::write(dir.join("ca.crt"), &material.ca_pem).unwrap();
    }

    fn refusal(folder: &TlsFolder, dir: &Path, now: Timestamp) -> String {
        let error = folder.read(now).unwrap_err();
        crate::telemetry::chain(&error).replace(&dir.display().to_string(), "DIR")
    }

    #[test]
    fn a_folder_with_unusable_certificates_is_refused_with_the_reason() {
        let (dir, now) = (tempfile::tempdir().unwrap(), Timestamp::now());
        let folder = TlsFolder::new(dir.path().to_owned(), vec!["127.0.0.1".to_owned()]);
        assert_eq!(
            refusal(&folder, dir.path(), now),
            "the certificates in DIR do not serve: tls.crt is missing"
        );
        let (material, stranger) = (made_for_test(), made_for_test());
        write(dir.path(), &material);
        assert_eq!(folder.read(now).unwrap().server_cert_pem, material.server_cert_pem);
        let late = now + jiff::SignedDuration::from_hours(24 * 400);
        assert!(refusal(&folder, dir.path(), late).contains("tls.crt is valid from "));
        std::fs::write(dir.path().join("tls.key"), &stranger.server_key_pem).unwrap();
        assert!(refusal(&folder, dir.path(), now).contains("tls.key cannot be used"));
        write(dir.path(), &Material { ca_pem: stranger.ca_pem, ..material.clone() });
        assert!(
            refusal(&folder, dir.path(), now).contains("tls.crt does not serve: invalid peer certificate")
        );
        std::fs::remove_file(dir.path().join("ca.crt")).unwrap();
        assert!(folder.read(now).is_ok());
        write(dir.path(), &material);
        let other = TlsFolder::new(dir.path().to_owned(), vec!["localhost".to_owned()]);
        assert!(refusal(&other, dir.path(), now).contains("tls.crt does not serve localhost"));
    }

    #[test]
    fn a_mounted_secret_is_read_through_its_link() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (made_for_test(), made_for_test());
        for (name, material) in [("..1", &old), ("..2", &new)] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
            write(&dir.path().join(name), material);
        }
        let folder = TlsFolder::new(dir.path().to_owned(), vec!["127.0.0.1".to_owned()]);
        for (name, material) in [("..1", &old), ("..2", &new)] {
            let _ = std::fs::remove_file(dir.path().join(CURRENT));
            std::os::unix::fs::symlink(name, dir.path().join(CURRENT)).unwrap();
            assert_eq!(folder.read(Timestamp::now()).unwrap().server_cert_pem, material.server_cert_pem);
        }
    }
}

//! Keys and secrets on disk: readable by their owner alone, never half written, never overwritten by accident.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

use serde_json::Value;
use tempfile::NamedTempFile;
use tower_rctp::wire::{
    base64url,
    crypto::{Algorithm, default_provider},
    jwk::{PublicKey, SigningKey},
};
use zeroize::Zeroizing;

use super::Error;

/// A secret text. It is wiped when dropped, and `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(Zeroizing::new(text.into()))
    }

    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// 256 random bits in base64url.
pub fn random() -> Result<String, Error> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)
        .map_err(|e| Error(format!("the operating system gave no random bits: {e}")))?;
    Ok(base64url(&bytes))
}

/// The gateway's signing key: read, or made where there is none. `setting` names it in errors.
pub fn signing_key(path: &Path, setting: &str) -> Result<SigningKey, Error> {
    let failed = |what: &dyn fmt::Display| Error(format!("{setting}: {}: {what}", path.display()));
    match fs::metadata(path) {
        Ok(_) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let key = SigningKey::generate().map_err(|e| failed(&e))?;
            let pem = key.to_pkcs8_pem().map_err(|e| failed(&e))?;
            create(path, pem.as_bytes()).map_err(|e| {
                let why = e.kind();
                failed(&format!(
                    "it cannot be made: {why}; its directory must exist and be writable"
                ))
            })?;
        }
        Err(e) => return Err(failed(&e)),
    }
    // What is on the disk counts, also where another process was quicker.
    let pem = Zeroizing::new(fs::read_to_string(path).map_err(|e| failed(&e))?);
    warn_if_others_can_read(path);
    SigningKey::from_pkcs8_pem(&pem).map_err(|e| failed(&e))
}

/// Public keys as JWKs, one a file. `setting` names them in errors, which do not repeat what the files hold: one may be
/// named by mistake.
pub fn public_keys(paths: &[PathBuf], setting: &str) -> Result<Vec<Value>, Error> {
    let read = |path: &PathBuf| {
        let failed =
            |what: &dyn fmt::Display| Error(format!("{setting}: {}: {what}", path.display()));
        let text = Zeroizing::new(fs::read_to_string(path).map_err(|e| failed(&e))?);
        let write = match text.contains("PRIVATE KEY") {
            true => {
                "it is a private key; write its public half, the key's entry of `keys` in /.well-known/ucp"
            }
            false => "it is not JSON; write the key's entry of `keys` in /.well-known/ucp",
        };
        let jwk: Value = serde_json::from_str(&text).map_err(|_| failed(&write))?;
        let key = PublicKey::from_jwk_with(&jwk, default_provider()).map_err(|e| failed(&e))?;
        if key.algorithm() != Algorithm::Es256 {
            return Err(failed(
                &"it is no P-256 key, and the gateway signs with no other",
            ));
        }
        Ok(jwk)
    };
    paths.iter().map(read).collect()
}

/// Writes a new file of mode 0600; one that is there already stays as it is.
pub fn create(path: &Path, contents: &[u8]) -> io::Result<()> {
    match written(path, contents)?.persist_noclobber(path) {
        Ok(_) => Ok(()),
        Err(e) if e.error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(e.error),
    }
}

/// Writes a file of mode 0600 in place of the one that is there.
pub fn replace(path: &Path, contents: &[u8]) -> io::Result<()> {
    written(path, contents)?.persist(path)?;
    Ok(())
}

/// A temporary file beside `path`, on the disk. `tempfile` makes it with mode 0600.
fn written(path: &Path, contents: &[u8]) -> io::Result<NamedTempFile> {
    let directory: PathBuf = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.into(),
        _ => ".".into(),
    };
    let mut file = NamedTempFile::new_in(directory)?;
    io::Write::write_all(&mut file, contents)?;
    file.as_file().sync_all()?;
    Ok(file)
}

#[cfg(unix)]
fn warn_if_others_can_read(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    if let Ok(metadata) = fs::metadata(path)
        && metadata.permissions().mode() & 0o077 != 0
    {
        tracing::warn!(file = %path.display(), "others can read this key; run chmod 600 on it");
    }
}

#[cfg(not(unix))]
fn warn_if_others_can_read(_: &Path) {}

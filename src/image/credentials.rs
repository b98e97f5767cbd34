//! Finding the docker config file of the node.

use super::keyring::{Keyring, Layout};
use crate::files::read_regular;
use std::path::PathBuf;

/// The largest docker config file, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Where docker config files are looked for, most important first: the agent's root directory, its
/// working directory, the home directory, `/`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CredentialPaths {
    /// Root directory of the agent.
    pub root_dir: PathBuf,
    /// Working directory of the agent.
    pub work_dir: PathBuf,
    /// Home directory, where there is one.
    pub home_dir: Option<PathBuf>,
}

impl CredentialPaths {
    /// Candidates in the order of looking: every `config.json` before any `.dockercfg`.
    fn candidates(&self) -> Vec<(PathBuf, Layout)> {
        let slash = PathBuf::from("/");
        let plain = [&self.root_dir, &self.work_dir].into_iter().map(|d| d.join("config.json"));
        let home = self.home_dir.iter().chain([&slash]).map(|d| d.join(".docker/config.json"));
        let legacy = [&self.root_dir, &self.work_dir]
            .into_iter()
            .chain(&self.home_dir)
            .chain([&slash])
            .map(|d| d.join(".dockercfg"));
        plain
            .chain(home)
            .map(|path| (path, Layout::Config))
            .chain(legacy.map(|path| (path, Layout::Legacy)))
            .collect()
    }

    /// Reads the first usable file; an empty keyring without one. Read at every pull, so that a
    /// new password is used at once. A damaged file is named in the log and passed over: a public
    /// image can be pulled all the same.
    pub(super) fn read(&self) -> Keyring {
        for (path, layout) in self.candidates() {
            let text = match read_regular(&path, MAX_FILE_BYTES) {
                Ok(text) => text,
                Err(err) => {
                    if !err.is_not_found() {
                        tracing::warn!(path = %path.display(), %err, "cannot read registry credentials");
                    }
                    continue;
                }
            };
            match Keyring::parse(&text, layout) {
                Ok(keyring) => return keyring,
                Err(err) => {
                    // Line and column only: the text may hold a password.
                    let (line, column) = (err.line(), err.column());
                    tracing::warn!(path = %path.display(), line, column, "registry credentials are damaged");
                }
            }
        }
        Keyring::default()
    }
}

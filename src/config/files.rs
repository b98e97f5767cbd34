//! Finds and reads the files.

use super::{
    assemble::{ConfigError, GivenFlag, Loaded, SourceFile, assemble},
    credential_providers::ProviderFiles,
    flags::BOOTSTRAP_FLAG,
    host::HostFacts,
    read::Bases,
    tree::{Layer, Mistake},
};
use crate::{
    document::MAX_TEXT_BYTES,
    files::open_regular_or_pipe,
    image::CredentialProvider,
    model::{Order as _, Position, Problem},
};
use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

/// Deepest nesting of a drop-in directory that is followed.
const MAX_DEPTH: usize = 16;

/// Reads the files that the flags name and everything that the flags say.
///
/// Touches nothing. An agent without `--config` gets the defaults.
///
/// # Errors
/// Everything that is wrong, with file, line and column, or with the flag.
pub fn load(flags: &[GivenFlag], host: &HostFacts) -> Result<Loaded, ConfigError> {
    load_with(flags, host, &read_text)
}

/// As [`load`], with texts from `read`.
///
/// # Errors
/// As [`load`].
pub fn load_with(
    flags: &[GivenFlag],
    host: &HostFacts,
    read: ReadText<'_>,
) -> Result<Loaded, ConfigError> {
    let named = |name: &str| {
        let given = flags.iter().find(|given| given.flag.name == name)?;
        Some(given.last()).filter(|path| !path.is_empty()).map(PathBuf::from)
    };
    let (config, drop_ins) = (named("config"), named("config-dir"));
    let mut files = Vec::new();
    let mut mistakes = Vec::new();
    if let Some(path) = &config {
        take(path, Layer::Main, read, &mut files, &mut mistakes);
    }
    if let Some(dir) = &drop_ins {
        let mut found = Vec::new();
        match find_drop_ins(dir, 0, &mut found) {
            Ok(()) => {
                for path in &found {
                    take(path, Layer::DropIn, read, &mut files, &mut mistakes);
                }
            }
            Err((path, error)) => mistakes.push(unreadable(&path, &error)),
        }
    }
    if let Some(bootstrap) = named(BOOTSTRAP_FLAG) {
        match named("kubeconfig") {
            None => mistakes.push(alone(BOOTSTRAP_FLAG, "kubeconfig")),
            Some(kubeconfig) if !kubeconfig.exists() && !bootstrap.exists() => {
                mistakes.push(no_credentials(&kubeconfig, &bootstrap));
            }
            Some(_) => {}
        }
    }
    let providers = match (named(PROVIDERS), named(PROVIDER_PROGRAMS)) {
        (None, None) => Vec::new(),
        (Some(path), Some(dir)) => match credential_providers(&path, Some(&dir), read) {
            Ok(providers) => providers,
            Err(found) => {
                mistakes.extend(found);
                Vec::new()
            }
        },
        (Some(_), None) => {
            mistakes.push(alone(PROVIDERS, PROVIDER_PROGRAMS));
            Vec::new()
        }
        (None, Some(_)) => {
            mistakes.push(alone(PROVIDER_PROGRAMS, PROVIDERS));
            Vec::new()
        }
    };
    let working = std::path::absolute(".").unwrap_or_else(|_| PathBuf::from("/"));
    let main = config
        .and_then(|path| Some(working.join(path).parent()?.to_path_buf()))
        .unwrap_or_else(|| working.clone());
    let result = assemble(&files, flags, &Bases { main, working }, host);
    if mistakes.is_empty() {
        return result.map(|mut loaded| {
            loaded.config.images.providers = providers;
            loaded
        });
    }
    let unknown = match result {
        Ok(loaded) => loaded.unknown,
        Err(error) => {
            mistakes.extend(error.mistakes);
            error.unknown
        }
    };
    Err(ConfigError { mistakes, unknown })
}

/// The flag that names the plugins' configuration, and the one that names their directory.
const PROVIDERS: &str = "image-credential-provider-config";
const PROVIDER_PROGRAMS: &str = "image-credential-provider-bin-dir";

/// Nothing to join a cluster with.
fn no_credentials(kubeconfig: &Path, bootstrap: &Path) -> Mistake {
    let message = format!(
        "neither {} nor {} exists: the first certificate of the node is requested with the latter",
        kubeconfig.display(),
        bootstrap.display()
    );
    let problem = Problem { position: Position::default(), path: String::new(), message };
    Mistake { location: format!("--{BOOTSTRAP_FLAG}").into(), problem }
}

/// A flag that needs another one.
fn alone(flag: &str, other: &str) -> Mistake {
    let problem = Problem {
        position: Position::default(),
        path: String::new(),
        message: format!("needs --{other} as well"),
    };
    Mistake { location: format!("--{flag}").into(), problem }
}

/// Reads the configuration of credential provider plugins: a file, or the `*.yaml`, `*.yml` and
/// `*.json` files of a directory in lexical order. With `bin_dir` each plugin must be a program in
/// it.
///
/// # Errors
/// Everything that is wrong, with file, line and column.
pub fn credential_providers(
    path: &Path,
    bin_dir: Option<&Path>,
    read: ReadText<'_>,
) -> Result<Vec<CredentialProvider>, Vec<Mistake>> {
    let listed = match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => list_providers(path),
        Ok(_) => Ok(vec![path.to_path_buf()]),
        Err(error) => Err(error),
    };
    let paths = listed.map_err(|error| vec![unreadable(path, &error)])?;
    let mut files = ProviderFiles::default();
    if paths.is_empty() {
        files.mistakes.push(unreadable(path, &"no *.yaml, *.yml or *.json file is in it"));
    }
    // Plugins are run from wherever the agent happens to be.
    let absolute = |dir: &Path| std::path::absolute(dir).unwrap_or_else(|_| dir.to_path_buf());
    let bin_dir = bin_dir.map(absolute);
    for path in &paths {
        match read(path) {
            Ok(text) => files.file(
                &path.display().to_string().into(),
                &text,
                bin_dir.as_deref().unwrap_or(Path::new("")),
            ),
            Err(error) => files.mistakes.push(unreadable(path, &error)),
        }
    }
    if bin_dir.is_some() {
        files.check_programs();
    }
    if files.mistakes.is_empty() { Ok(files.providers()) } else { Err(files.mistakes) }
}

fn list_providers(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let known = path.extension().is_some_and(|e| e == "yaml" || e == "yml" || e == "json");
        if known && !path.is_dir() {
            paths.push(path);
        }
    }
    paths.order();
    Ok(paths)
}

fn take(
    path: &Path,
    layer: Layer,
    read: ReadText<'_>,
    files: &mut Vec<SourceFile>,
    mistakes: &mut Vec<Mistake>,
) {
    match read(path) {
        Ok(text) => {
            files.push(SourceFile { name: path.display().to_string().into(), text, layer });
        }
        Err(error) => mistakes.push(unreadable(path, &error)),
    }
}

/// How the text of a file is read.
pub type ReadText<'a> = &'a dyn Fn(&Path) -> io::Result<Vec<u8>>;

/// Reads a file or a pipe, one byte more than is accepted at most.
///
/// # Errors
/// When it can't be read, or is something else.
pub fn read_text(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let limit = u64::try_from(MAX_TEXT_BYTES).unwrap_or(u64::MAX).saturating_add(1);
    open_regular_or_pipe(path)?.take(limit).read_to_end(&mut text)?;
    Ok(text)
}

fn unreadable(path: &Path, error: &dyn std::fmt::Display) -> Mistake {
    let message = format!("cannot be read: {error}");
    Mistake {
        location: Arc::from(path.display().to_string()),
        problem: Problem { position: Position::default(), path: String::new(), message },
    }
}

/// The `*.conf` files of a directory and the directories in it, in lexical order. Links to files
/// are followed, links to directories are not.
fn find_drop_ins(
    dir: &Path,
    depth: usize,
    found: &mut Vec<PathBuf>,
) -> Result<(), (PathBuf, io::Error)> {
    let here = |error| (dir.to_path_buf(), error);
    let mut entries =
        fs::read_dir(dir).and_then(Iterator::collect::<io::Result<Vec<_>>>).map_err(here)?;
    entries.order_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        if entry.file_type().map_err(here)?.is_dir() {
            if depth < MAX_DEPTH {
                find_drop_ins(&path, depth + 1, found)?;
            }
        } else if path.extension().is_some_and(|e| e == "conf") {
            // A link to nothing is kept, to be told about; a pipe would be waited for.
            if fs::metadata(&path).map_or(true, |metadata| metadata.is_file()) {
                found.push(path);
            }
        }
    }
    Ok(())
}

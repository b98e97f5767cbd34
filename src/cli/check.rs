//! `nodelet check`: what the agent would say about manifests and configuration files, by the agent's
//! own code, without an agent. One line for each finding, in the form that editors jump to.

use super::{EXIT_FAILURE, args::CheckArgs};
use crate::{
    clock,
    config::{self, Config, GivenFlag, HostFacts},
    desired::{Knowledge, SourceSnapshot, merge},
    document::{MAX_TEXT_BYTES, Node, parse},
    manifest::{self, Context, Settings},
    model::{DesiredPod, SourceKind, SourceView},
};
use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

/// What was found so far.
struct Report {
    node_name: String,
    settings: Settings,
    /// Drop-ins that are merged over every configuration file.
    config_dir: Option<GivenFlag>,
    /// The agent's own configuration file, and whether it is right.
    main: Option<(PathBuf, bool)>,
    host: HostFacts,
    lines: Vec<String>,
    /// How many lines stop something from working.
    wrong: usize,
    pods: Vec<Arc<DesiredPod>>,
}

/// Checks every path; the exit code tells whether everything was right.
///
/// # Errors
/// When the findings can't be printed.
pub(super) fn run(args: &CheckArgs) -> io::Result<ExitCode> {
    let mut report = Report::new(args);
    for path in &args.paths {
        report.path(path);
    }
    report.duplicates();
    let mut out = io::stdout().lock();
    for line in &report.lines {
        writeln!(out, "{line}")?;
    }
    out.flush()?;
    Ok(ExitCode::from(if report.wrong == 0 { 0 } else { EXIT_FAILURE }))
}

/// A flag of the agent with the value that `check` was given for it.
fn given(name: &str, value: &Path) -> Option<GivenFlag> {
    let flag = config::flag(name)?;
    Some(GivenFlag { flag, values: vec![value.to_string_lossy().into_owned()] })
}

impl Report {
    /// Begins with the agent's own configuration.
    fn new(args: &CheckArgs) -> Self {
        let config_dir = args.config_dir.as_deref().and_then(|dir| given("config-dir", dir));
        let name = args.hostname_override.as_deref().map(Path::new);
        let mut flags: Vec<GivenFlag> = config_dir.iter().cloned().collect();
        flags.extend(args.config.as_deref().and_then(|file| given("config", file)));
        flags.extend(name.and_then(|name| given("hostname-override", name)));
        let mut report = Self {
            node_name: String::new(),
            settings: Settings::default(),
            config_dir,
            main: None,
            host: HostFacts::read(),
            lines: Vec::new(),
            wrong: 0,
            pods: Vec::new(),
        };
        let config = report.load(&flags);
        report.main = args.config.clone().map(|file| (file, report.wrong == 0));
        let config = config.unwrap_or_default();
        report.node_name = node_name(&config);
        report.settings =
            Settings { allowed_unsafe_sysctls: config.pods.allowed_unsafe_sysctls.clone() };
        report
    }

    fn wrong(&mut self, line: String) {
        self.wrong += 1;
        self.lines.push(line);
    }

    /// Loads a configuration and reports what is to be said about it.
    fn load(&mut self, flags: &[GivenFlag]) -> Option<Config> {
        match config::load(flags, &self.host) {
            Ok(loaded) => {
                for mistake in &loaded.unknown {
                    self.wrong(mistake.to_string());
                }
                let notices = loaded.config.notices.iter().skip(loaded.unknown.len());
                self.lines.extend(notices.map(|notice| format!("{notice} (notice)")));
                Some(loaded.config)
            }
            Err(error) => {
                for mistake in error.mistakes.iter().chain(&error.unknown) {
                    self.wrong(mistake.to_string());
                }
                None
            }
        }
    }

    fn path(&mut self, path: &Path) {
        match fs::metadata(path) {
            Err(error) => self.wrong(format!("{}: cannot be read: {error}", path.display())),
            Ok(metadata) if metadata.is_dir() => self.directory(path),
            Ok(_) => self.file(path),
        }
    }

    /// The files of a directory that the agent would read, in its order.
    fn directory(&mut self, dir: &Path) {
        let listing = fs::read_dir(dir).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let mut entries = match listing {
            Ok(entries) => entries,
            Err(error) => {
                self.wrong(format!("{}: cannot be read: {error}", dir.display()));
                return;
            }
        };
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let path = entry.path();
            match skip_reason(&path) {
                Some(reason) => self.lines.push(format!("{}: ignored: {reason}", path.display())),
                None => self.file(&path),
            }
        }
    }

    fn file(&mut self, path: &Path) {
        let shown = path.display();
        let text = match read(path) {
            Ok(text) => text,
            Err(error) => {
                self.wrong(format!("{shown}: cannot be read: {error}"));
                return;
            }
        };
        if is_configuration(&text) {
            self.configuration(path);
        } else {
            self.manifest(path, &text);
        }
    }

    /// A configuration file, as the agent's main one.
    fn configuration(&mut self, path: &Path) {
        if let Some((_, right)) = self.main.as_ref().filter(|(main, _)| main == path) {
            if *right {
                self.lines.push(format!("{}: ok", path.display()));
            }
            return;
        }
        let flags: Vec<GivenFlag> =
            given("config", path).into_iter().chain(self.config_dir.clone()).collect();
        let before = self.wrong;
        if self.load(&flags).is_some() && self.wrong == before {
            self.lines.push(format!("{}: ok", path.display()));
        }
    }

    fn manifest(&mut self, path: &Path, text: &[u8]) {
        let shown = path.display();
        let location = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let location = location.to_string_lossy();
        let context = Context {
            node_name: &self.node_name,
            source: SourceKind::File,
            location: &location,
            seen: clock::now().wall,
            settings: &self.settings,
        };
        let documents = match manifest::decode(text, &context) {
            Ok(file) => file.documents,
            Err(problem) => {
                self.wrong(format!("{shown}: {problem}"));
                return;
            }
        };
        if documents.is_empty() {
            self.lines.push(format!("{shown}: ignored: there is no document in it"));
        }
        for document in documents {
            for warning in &document.warnings {
                self.lines.push(format!("{shown}: {warning} (warning)"));
            }
            match document.result {
                Ok(pod) => {
                    self.lines.push(format!("{shown}: ok: pod {}", pod.key));
                    self.pods.push(Arc::new(pod));
                }
                Err(problems) => {
                    for problem in &problems {
                        self.wrong(format!("{shown}: {problem}"));
                    }
                }
            }
        }
    }

    /// Pods of the same name in several places.
    fn duplicates(&mut self) {
        let snapshot = SourceSnapshot {
            kind: SourceKind::File,
            knowledge: Knowledge::Complete,
            pods: std::mem::take(&mut self.pods),
            view: SourceView {
                kind: SourceKind::File,
                location: String::new(),
                error: None,
                files: Vec::new(),
            },
        };
        for duplicate in merge(&[Arc::new(snapshot)], &|_| None).duplicates {
            self.wrong(format!("{}: {}", duplicate.dropped.location, duplicate.message));
        }
    }
}

/// The name that the agent would give the node: the one that it was told, the one that it keeps, or
/// the host's.
fn node_name(config: &Config) -> String {
    let kept = config.paths.root_dir.join("nodelet/node-name");
    let host = || nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    config
        .node
        .name_override
        .clone()
        .or_else(|| fs::read_to_string(kept).ok())
        .or_else(host)
        .map(|name| name.trim().to_lowercase())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "localhost".to_owned())
}

/// Whether a text holds configuration and not manifests.
fn is_configuration(text: &[u8]) -> bool {
    let kinds = parse(text).unwrap_or_default();
    kinds.iter().any(|document| {
        let text = |key| document.root.get(key).and_then(Node::as_str).unwrap_or_default();
        text("kind").ends_with("Configuration")
            || text("apiVersion").starts_with("kubelet.config.k8s.io/")
            || text("apiVersion").starts_with("nodelet.dev/")
    })
}

/// Reads a file, one byte more than is accepted at most.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let limit = u64::try_from(MAX_TEXT_BYTES).unwrap_or(u64::MAX).saturating_add(1);
    File::open(path)?.take(limit).read_to_end(&mut text)?;
    Ok(text)
}

/// Why the agent passes over a directory's entry; `None` where it reads it.
fn skip_reason(path: &Path) -> Option<&'static str> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if path.is_dir() {
        return Some("it is a directory");
    }
    if path.exists() && !path.is_file() {
        return Some("it is not a regular file");
    }
    if name.starts_with('.') || name.starts_with('#') || name.ends_with('~') {
        return Some("it is a hidden, backup or swap file");
    }
    match path.extension().and_then(|e| e.to_str()) {
        Some("yaml" | "yml" | "json") => None,
        _ => Some("it is not a *.yaml, *.yml or *.json file"),
    }
}

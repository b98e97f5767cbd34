//! `nodelet check`: what the agent would say about manifests and configuration files, by the
//! agent's own code, without an agent. One line for each finding, in the form that editors jump to.

use super::{EXIT_FAILURE, args::CheckArgs};
use crate::{
    admission::{Cycle, StartOrder},
    clock,
    config::{self, Config, GivenFlag, HostFacts, Mistake},
    desired::{Knowledge, SourceSnapshot, merge},
    document::{Node, parse},
    machine,
    manifest::Settings,
    model::{
        AFTER, DesiredPod, FileVerdict, ObjectKey, Origin, PodKey, Position, Problem, SourceKind,
        SourceView, printable,
    },
    podspec::{ObjectRef, object_refs},
    presentation::{finding, findings},
    source::{Accepts, CredentialsDirectory, SavedState, SourceOptions, inspect, inspect_text},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

/// What was found so far.
struct Report {
    /// What the agent would read manifests with.
    options: SourceOptions,
    /// Drop-ins that are merged over every configuration file.
    config_dir: Option<GivenFlag>,
    /// Where the programs of credential provider plugins must be.
    plugin_dir: Option<PathBuf>,
    /// The agent's own configuration file, and whether it is right.
    main: Option<(PathBuf, bool)>,
    host: HostFacts,
    lines: Vec<String>,
    /// How many lines stop something from working.
    wrong: usize,
    pods: Vec<Arc<DesiredPod>>,
    /// The path of each file as the user wrote it.
    shown: BTreeMap<Box<str>, String>,
    /// The ConfigMaps and Secrets that pods find.
    objects: BTreeSet<ObjectKey>,
    /// A whole directory was checked, so what is not there is missing.
    directory: bool,
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
    report.references();
    report.duplicates();
    let lines: String =
        report.lines.iter().map(|line| printable(line).into_owned() + "\n").collect();
    super::show(&lines)?;
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
            options: SourceOptions {
                accepts: Accepts::All,
                credentials: CredentialsDirectory::Unknown,
                node_name: String::new(),
                settings: Settings::default(),
                check_every: Duration::ZERO,
                saved: SavedState::None,
                admitted: Vec::new(),
            },
            config_dir,
            plugin_dir: args.image_credential_provider_bin_dir.clone(),
            main: None,
            host: HostFacts::read(),
            lines: Vec::new(),
            wrong: 0,
            pods: Vec::new(),
            shown: BTreeMap::new(),
            objects: BTreeSet::new(),
            directory: false,
        };
        let config = report.load(&flags, Already::default());
        if let Some(path) = &args.image_credential_provider_config {
            report.credential_providers(path, Already::default());
        }
        report.main = args.config.clone().map(|file| (file, report.wrong == 0));
        let config = config.unwrap_or_default();
        report.options.node_name = node_name(&config);
        report.options.settings = Settings {
            allowed_unsafe_sysctls: config.pods.allowed_unsafe_sysctls.clone(),
            priority_classes: config.pods.priority_classes.clone(),
            runtime_classes: config.pods.runtime_classes.clone(),
        };
        if let Some(path) = &config.source.config_path {
            let options = SourceOptions { accepts: Accepts::Objects, ..report.options.clone() };
            report.take_in(path, inspect(path, &options, clock::now()));
        }
        report
    }

    fn wrong(&mut self, line: String) {
        self.wrong += 1;
        self.lines.push(line);
    }

    /// Loads a configuration and reports what is to be said about it.
    fn load(&mut self, flags: &[GivenFlag], already: Already<'_>) -> Option<Config> {
        match config::load_with(flags, &self.host, &|path| already.read(path)) {
            Ok(loaded) => {
                for mistake in &loaded.unknown {
                    self.wrong(line(mistake));
                }
                let notices = loaded.notices.iter();
                self.lines.extend(
                    notices.map(|notice| finding(&notice.location, &notice.problem, "notice: ")),
                );
                Some(loaded.config)
            }
            Err(error) => {
                for mistake in error.mistakes.iter().chain(&error.unknown) {
                    self.wrong(line(mistake));
                }
                None
            }
        }
    }

    fn path(&mut self, path: &Path) {
        match fs::metadata(path) {
            Err(error) => self.wrong(format!("{}: cannot be read: {error}", path.display())),
            Ok(metadata) if metadata.is_dir() => {
                self.directory = true;
                self.manifests(path);
            }
            Ok(metadata) => match config::read_text(path) {
                Err(error) => self.wrong(format!("{}: cannot be read: {error}", path.display())),
                Ok(text) if has_kind(&text, |kind, _| kind == config::PROVIDER_KIND) => {
                    self.credential_providers(path, Already(Some((path, &text))));
                }
                Ok(text) if has_kind(&text, is_configuration) => self.configuration(path, &text),
                Ok(_) if metadata.is_file() => self.manifests(path),
                // A pipe: the output of a program, which can be read only once.
                Ok(text) => {
                    let location = path.to_string_lossy();
                    let now = clock::now();
                    self.take_in(path, inspect_text(&text, &location, &self.options, now));
                }
            },
        }
    }

    /// A file, or every file of a directory, as the agent would read it.
    fn manifests(&mut self, path: &Path) {
        let path_now = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        self.take_in(path, inspect(&path_now, &self.options, clock::now()));
    }

    /// What the agent would say, with paths as the user wrote them.
    fn take_in(&mut self, path: &Path, snapshot: SourceSnapshot) {
        let view = Arc::unwrap_or_clone(snapshot.view);
        if let Some(error) = view.error {
            self.wrong(error);
        } else if view.files.is_empty() {
            self.lines.push(format!("{}: there is no file in it", path.display()));
        }
        for mut file in view.files {
            let below = Path::new(&file.location).strip_prefix(&view.location);
            let written = match below {
                Ok(name) if !name.as_os_str().is_empty() => path.join(name),
                Ok(_) | Err(_) => path.to_path_buf(),
            };
            let shown = written.to_string_lossy().into_owned();
            self.shown.insert(file.location.as_str().into(), shown.clone());
            file.location = shown;
            let shown = &file.location;
            for verdict in &file.verdicts {
                let findings = findings(&file, verdict);
                match verdict {
                    FileVerdict::Accepted { key, .. } => {
                        self.lines.extend(findings);
                        self.lines.push(format!("{shown}: ok: pod {key}"));
                    }
                    FileVerdict::Object { key, .. } => {
                        self.objects.insert(key.clone());
                        self.lines.extend(findings);
                        self.lines.push(format!("{shown}: ok: {key}"));
                    }
                    FileVerdict::Rejected { .. } => {
                        self.wrong += findings.len();
                        self.lines.extend(findings);
                    }
                    FileVerdict::Skipped { reason } => {
                        self.lines.push(format!("{shown}: ignored: {reason}"));
                    }
                }
            }
        }
        for pod in snapshot.pods {
            // The same file may be named twice.
            if !self.pods.iter().any(|other| other.origin == pod.origin) {
                self.pods.push(pod);
            }
        }
    }

    /// A configuration file, as the agent's main one.
    fn configuration(&mut self, path: &Path, text: &[u8]) {
        if let Some((_, right)) = self.main.as_ref().filter(|(main, _)| main == path) {
            if *right {
                self.lines.push(format!("{}: ok", path.display()));
            }
            return;
        }
        let flags: Vec<GivenFlag> =
            given("config", path).into_iter().chain(self.config_dir.clone()).collect();
        let before = self.wrong;
        if self.load(&flags, Already(Some((path, text)))).is_some() && self.wrong == before {
            self.lines.push(format!("{}: ok", path.display()));
        }
    }

    /// The configuration of credential provider plugins: a file, or a directory of such files.
    fn credential_providers(&mut self, path: &Path, already: Already<'_>) {
        let read = |path: &Path| already.read(path);
        match config::credential_providers(path, self.plugin_dir.as_deref(), &read) {
            Ok(_) => self.lines.push(format!("{}: ok", path.display())),
            Err(mistakes) => mistakes.iter().for_each(|mistake| self.wrong(line(mistake))),
        }
    }

    /// ConfigMaps and Secrets that pods need and that nothing provides.
    fn references(&mut self) {
        let mut lines = Vec::new();
        for pod in &self.pods {
            let missing = object_refs(&pod.pod)
                .into_iter()
                .filter(|reference| !reference.optional && !self.objects.contains(&reference.key));
            for ObjectRef { key, field, .. } in missing {
                let position = Position { line: pod.origin.line, column: 1 };
                let message =
                    format!("Not found: \"{key}\": the pod waits until a document provides it");
                let what = if self.directory { "" } else { "warning: " };
                let problem = Problem { position, path: field, message };
                let location = &pod.origin.location;
                let shown = self.shown.get(location).map_or(&**location, String::as_str);
                lines.push(finding(shown, &problem, what));
            }
        }
        if self.directory {
            self.wrong += lines.len();
        }
        self.lines.extend(lines);
    }

    /// Pods of the same name in several of the paths, and the order in which all pods start.
    fn duplicates(&mut self) {
        let snapshot = SourceSnapshot {
            kind: SourceKind::File,
            knowledge: Knowledge::Complete,
            pods: std::mem::take(&mut self.pods),
            unconfirmed: BTreeSet::new(),
            ends: BTreeMap::new(),
            view: Arc::new(SourceView::empty(SourceKind::File, "")),
        };
        let desired = merge(&[Arc::new(snapshot)], &|_| None, &|_| None);
        for duplicate in &desired.duplicates {
            self.wrong(format!("{}: {}", duplicate.dropped.location, duplicate.message));
        }
        self.start_order(&desired.pods);
    }

    /// Pods that wait for each other, and names that no manifest has.
    fn start_order(&mut self, pods: &BTreeMap<PodKey, Arc<DesiredPod>>) {
        let order = StartOrder::new(pods, &self.options.node_name);
        let line = |origin: &Origin, message: String, what: &str| {
            let position = Position { line: origin.line, column: 1 };
            let path = format!("metadata.annotations[{AFTER}]");
            let shown = self.shown.get(&origin.location).map_or(&*origin.location, String::as_str);
            finding(shown, &Problem { position, path, message }, what)
        };
        let cycles = order.cycles().iter();
        let cycles = cycles.map(|cycle| line(&cycle.origin, cycle.message.clone(), ""));
        // Where a whole directory was checked, what is not there is missing.
        let what = if self.directory { "" } else { "warning: " };
        let unknown = order.unknown().filter_map(|(key, name)| {
            let message =
                format!("Not found: {name:?}: the pod waits until a manifest has this name");
            Some(line(&pods.get(key)?.origin, message, what))
        });
        let (cycles, unknown): (Vec<_>, Vec<_>) = (cycles.collect(), unknown.collect());
        self.wrong += cycles.len() + if self.directory { unknown.len() } else { 0 };
        for Cycle { key, origin, .. } in order.cycles() {
            let shown = self.shown.get(&origin.location).map_or(&*origin.location, String::as_str);
            let accepted = format!("{shown}: ok: pod {key}");
            self.lines.retain(|line| *line != accepted);
        }
        self.lines.extend(cycles.into_iter().chain(unknown));
    }
}

fn line(mistake: &Mistake) -> String {
    finding(&mistake.location, &mistake.problem, "")
}

/// The name that the agent would give the node: the one that it was told, the one that it keeps, or
/// the host's.
fn node_name(config: &Config) -> String {
    let kept = config.paths.root_dir.join("nodelet/node-name");
    let host = || machine::host_name().ok();
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

/// Whether kind and apiVersion are those of a configuration and not of a manifest.
fn is_configuration(kind: &str, api_version: &str) -> bool {
    kind.ends_with("Configuration")
        || api_version.starts_with("kubelet.config.k8s.io/")
        || api_version.starts_with("nodelet.dev/")
}

/// Whether a document of a text has such a kind and apiVersion.
fn has_kind(text: &[u8], wanted: impl Fn(&str, &str) -> bool) -> bool {
    parse(text).unwrap_or_default().iter().any(|document| {
        let text = |key| document.root.get(key).and_then(Node::as_str).unwrap_or_default();
        wanted(text("kind"), text("apiVersion"))
    })
}

/// A file that was read already, with its text: a pipe can be read only once.
#[derive(Clone, Copy, Default)]
struct Already<'a>(Option<(&'a Path, &'a [u8])>);

impl Already<'_> {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        match self.0 {
            Some((read, text)) if read == path => Ok(text.to_vec()),
            Some(_) | None => config::read_text(path),
        }
    }
}

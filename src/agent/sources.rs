//! Starts the sources of manifests, and passes requests of users on to them.

use super::{
    build::{Tasks, named, spawn},
    remembered::{admitted, remembered, save},
};
use crate::{
    config::Config,
    desired::Knowledge,
    manifest,
    model::{NodeObjects, SourceKind},
    serve::{Command, ForgetAnswer},
    source::{
        Accepts, CredentialsDirectory, DirectorySource, Forgotten, SavedState, SourceHandle,
        SourceOptions, UrlSource,
    },
    store::{Loaded, Store},
    worker::Asking,
};
use std::{sync::Arc, time::Duration};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// The sources of pods, and the one of `configPath`.
pub(super) struct Sources {
    pub pods: Vec<SourceHandle>,
    config: Option<SourceHandle>,
    /// ConfigMaps and Secrets of the sources that may have them, most important first.
    pub objects: Vec<watch::Receiver<Arc<NodeObjects>>>,
}

impl Sources {
    pub(super) fn all(&self) -> impl Iterator<Item = &SourceHandle> {
        self.pods.iter().chain(&self.config)
    }
}

pub(super) fn spawn_sources(
    config: &Config,
    node_name: &str,
    loaded: &mut Loaded,
    store: &Store,
    tasks: &mut Tasks,
    shutdown: &CancellationToken,
) -> Sources {
    let mut options = |kind: SourceKind, check_every: Duration| SourceOptions {
        accepts: match kind {
            SourceKind::File => Accepts::All,
            SourceKind::Http | SourceKind::Api => Accepts::Pods,
        },
        credentials: match &config.source.credentials {
            Some(path) => CredentialsDirectory::At(path.clone()),
            None => CredentialsDirectory::None,
        },
        node_name: node_name.to_owned(),
        settings: manifest::Settings {
            allowed_unsafe_sysctls: config.pods.allowed_unsafe_sysctls.clone(),
            priority_classes: config.pods.priority_classes.clone(),
            runtime_classes: config.pods.runtime_classes.clone(),
        },
        check_every,
        admitted: admitted(loaded, kind),
        saved: remembered(loaded, kind),
    };
    let mut handles = Vec::new();
    if let Some(path) = &config.source.static_pod_path {
        let options = options(SourceKind::File, config.source.file_check);
        let (source, handle) = DirectorySource::new(path.clone(), options);
        spawn(tasks, "manifest directory", source.run(shutdown.clone()));
        handles.push((SourceKind::File, handle));
    }
    if let Some(url) = &config.source.url {
        let options = options(SourceKind::Http, config.source.http_check);
        let (source, handle) = UrlSource::new(url, &config.source.headers, options);
        spawn(tasks, "manifest URL", source.run(shutdown.clone()));
        handles.push((SourceKind::Http, handle));
    }
    for (kind, handle) in &handles {
        let saving = save(handle.clone(), *kind, store.clone(), shutdown.clone());
        tasks.spawn(named("saved manifests", saving));
    }
    let directory = handles.iter().find(|(kind, _)| *kind == SourceKind::File);
    let mut objects: Vec<_> = directory.iter().map(|(_, handle)| handle.objects.clone()).collect();
    let config = config.source.config_path.as_ref().map(|path| {
        let mut options = options(SourceKind::File, config.source.file_check);
        (options.accepts, options.saved) = (Accepts::Objects, SavedState::None);
        options.admitted = Vec::new();
        let (source, handle) = DirectorySource::new(path, options);
        spawn(tasks, "configPath", source.run(shutdown.clone()));
        handle
    });
    objects.extend(config.iter().map(|handle| handle.objects.clone()));
    Sources { pods: handles.into_iter().map(|(_, handle)| handle).collect(), config, objects }
}

/// Makes every source read its manifests again whenever `reload` changes.
pub(super) async fn look_again(
    mut reload: watch::Receiver<u64>,
    sources: Vec<SourceHandle>,
    shutdown: CancellationToken,
) {
    loop {
        // Cancel-safe: both arms only wait.
        tokio::select! {
            () = shutdown.cancelled() => return,
            changed = reload.changed() => {
                if changed.is_err() {
                    shutdown.cancelled().await;
                    return;
                }
            }
        }
        sources.iter().for_each(SourceHandle::look_again);
    }
}

/// Executes the commands that arrive through the local socket.
pub(super) async fn obey(
    mut commands: mpsc::Receiver<Command>,
    sources: Vec<SourceHandle>,
    asking: mpsc::Sender<Asking>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    loop {
        // Cancel-safe: `recv` loses no command when shutdown comes first.
        let command = tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            command = commands.recv() => command,
        };
        let (key, reply) = match command {
            Some(Command::Forget { key, reply }) => (key, reply),
            Some(Command::Ask { key, ask, reply }) => {
                // The set of workers ends only with the agent; the client then gets no answer.
                if asking.send(Asking { key, ask, reply }).await.is_err() {
                    tracing::debug!("no receiver for requests any more");
                }
                continue;
            }
            None => {
                shutdown.cancelled().await;
                return Ok(());
            }
        };
        let mut answer = ForgetAnswer::Unknown;
        for source in &sources {
            match source.forget(&key).await {
                Forgotten::Unknown => {}
                Forgotten::Done { location } => {
                    let knows_all = |source: &SourceHandle| {
                        source.snapshots.borrow().knowledge == Knowledge::Complete
                    };
                    let waits = !sources.iter().all(knows_all);
                    answer = ForgetAnswer::Forgotten { location, waits };
                    break;
                }
                Forgotten::Written { location } => answer = ForgetAnswer::NotKept { location },
            }
        }
        if reply.send(answer).is_err() {
            tracing::debug!(pod = %key, "the client that asked to forget it has disconnected");
        }
    }
}

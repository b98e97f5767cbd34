//! A stateful fake runtime behind the CRI socket: RuntimeService, ImageService and containerd's
//! event service. It keeps state as containerd does (names stay reserved until removal, a sandbox
//! must be ready for a container to start, containers live on when the daemon dies) and has no
//! expectations: faults are the proxy's job, checks the test's. What a container does is a
//! [`script`].

mod events;
mod saved;
mod script;
mod service;
mod state;

use super::serve::{Served, on_socket};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use jiff::SignedDuration;
use nodelet::cri::v1;
use service::Services;
use state::State;
use std::{
    convert::Infallible,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
};
use tokio::sync::broadcast;

/// The fake. Its state outlives its socket, as containers outlive containerd.
pub struct Fake {
    socket: PathBuf,
    shared: Arc<Shared>,
    served: Mutex<Option<Served>>,
}

struct Shared {
    state: Mutex<State>,
    events: broadcast::Sender<events::Event>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl Fake {
    /// Serves on `socket`, with the images of [`super::images::ALL`].
    pub fn start(socket: &Path) -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::new(State::with_images(&super::images::ALL)),
            events: broadcast::channel(1024).0,
        });
        let fake = Self { socket: socket.to_owned(), shared, served: Mutex::default() };
        fake.start_again();
        fake
    }

    /// Its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The daemon dies: every connection breaks, nobody listens; containers go on.
    pub fn kill(&self) {
        *self.served.lock().unwrap() = None;
        std::fs::remove_file(&self.socket).unwrap();
    }

    /// The daemon listens again.
    pub fn start_again(&self) {
        let services = Services::new(&self.shared);
        *self.served.lock().unwrap() = Some(on_socket(&self.socket, move |stream| {
            let services = services.clone();
            let service = service_fn(move |request| {
                let services = services.clone();
                async move { Ok::<_, Infallible>(services.call(request).await) }
            });
            async move {
                let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service);
                // A peer that hangs up is no concern of the fake.
                let _ended = connection.await;
            }
        }));
    }

    /// The container's process dies by SIGKILL.
    pub fn kill_container(&self, id: &str) {
        state::kill_container(&self.shared, id);
    }

    /// The sandbox's pause process dies; its containers go on.
    pub fn kill_sandbox(&self, id: &str) {
        state::end_sandbox(&self.shared, id);
    }

    /// What RuntimeStatus says of the pod network.
    pub fn set_network_ready(&self, ready: bool) {
        self.shared.state().network_ready = ready;
    }

    /// From now on sandboxes have an IPv6 address as well.
    pub fn add_second_family(&self) {
        self.shared.state().second_family = Some("fd00::");
    }

    /// What RuntimeConfig answers; `None` is not to have it, as containerd 1.x.
    pub fn set_cgroup_driver(&self, driver: Option<v1::CgroupDriver>) {
        self.shared.state().cgroup_driver = driver;
    }

    /// Whether it supports `supplementalGroupsPolicy: Strict`, as containerd 2.x.
    pub fn set_strict_groups(&self, supported: bool) {
        self.shared.state().strict_groups = supported;
    }

    /// From now on its default handler says that it can make user namespaces, as in containerd 2.x.
    pub fn add_user_namespaces(&self) {
        let features = v1::RuntimeHandlerFeatures { user_namespaces: true, ..Default::default() };
        let handler = v1::RuntimeHandler { name: String::new(), features: Some(features) };
        self.shared.state().handlers.push(handler);
    }

    /// Makes an image pullable (not present yet).
    pub fn publish_image(&self, name: &str) {
        self.shared.state().published.insert(name.to_owned());
    }

    /// Everything that it has, as JSON.
    pub fn save(&self) -> serde_json::Value {
        saved::save(&self.shared)
    }

    /// Has what was saved, as if `later` had passed since then. Containers that ran then run.
    pub fn restore(&self, saved: serde_json::Value, later: SignedDuration) {
        saved::restore(&self.shared, saved, later);
    }

    /// Sandboxes and containers that are left, one line each.
    pub fn leaks(&self) -> Vec<String> {
        self.shared.state().leaks()
    }
}

//! The control plane of kubeadm as static pods of the agent, which is a node of the very cluster
//! that it runs.

use super::{
    agent::{ready, uid},
    controlplane::{
        client::Client,
        kubeadm::{Kubeadm, PARTS},
        link::{Namespace, address_outside},
    },
    objects::NODES,
    programs,
    support::{
        agent::{NODE_NAME, Settings},
        poll_until,
        process::Stopped,
        say_loudly, skip_without_containerd,
        slot::mounts_under,
        world::{Kind, World},
    },
};
use nix::{
    mount::{MntFlags, umount2},
    unistd::Pid,
};
use serde_json::Value;
use std::{collections::BTreeMap, fs, time::Duration};
use tokio::time::Instant;

/// The startup probes of kubeadm begin after 10 s and come every 10 s, and a leader that was killed
/// leaves a lease of 15 s.
const UP: Duration = Duration::from_secs(120);

struct Plane {
    world: World,
    admin: Client,
    /// What the address of the control plane belongs to.
    _wire: Namespace,
}

/// Where the mirror pod of a part is.
fn mirror_of(part: &str) -> String {
    format!("/api/v1/namespaces/kube-system/pods/{part}-{NODE_NAME}")
}

impl Plane {
    /// Everything is there, and the agent does not run yet. `None` where something is missing.
    fn prepare() -> Option<Self> {
        if skip_without_containerd() {
            return None;
        }
        let programs = programs()?;
        let soon = "crashLoopBackOff: { maxContainerRestartPeriod: 1s }\n";
        let world = World::prepare(Kind::Real, &Settings::for_kind(Kind::Real).kubelet(soon));
        let wire = Namespace::make(&world.slot);
        let root = world.slot.dir().join("kubeadm");
        let kubeadm = Kubeadm::init(&programs, &root, address_outside(&world.slot));
        let archive = kubeadm.images(&programs, &world.slot.dir().join("images"));
        world.runtime.containerd().ctr(&["images", "import", archive.to_str().unwrap()]);
        for part in PARTS {
            world.write(&format!("{part}.yaml"), &kubeadm.manifest(part));
        }
        world.agent.join(&kubeadm.kubelet_conf());
        let admin = kubeadm.admin().with_deadline(Duration::from_secs(2));
        Some(Self { world, admin, _wire: wire })
    }

    /// The running container of each part.
    fn running(&self) -> BTreeMap<&'static str, Vec<String>> {
        PARTS.into_iter().map(|part| (part, self.world.running_ids(part))).collect()
    }

    /// Waits until everything is Ready, in the eyes of the agent and of the API server.
    #[track_caller]
    fn wait_up(&self, since: &str) -> Value {
        let begun = Instant::now();
        self.world.wait_for(UP, &format!("all parts are Ready after {since}"), |status| {
            PARTS.iter().all(|part| status.runs(part))
        });
        let shown = || -> (Vec<String>, Value) {
            let current = |part: &&str| {
                let mirror = self.admin.find(&mirror_of(part)).unwrap_or_default();
                let id = mirror["status"]["containerStatuses"][0]["containerID"].as_str();
                let id = id.unwrap_or_default().trim_start_matches("containerd://");
                ready(&mirror) && self.world.running_ids(part) == [id]
            };
            let mut missing: Vec<String> =
                PARTS.iter().filter(|part| !current(part)).map(|part| (*part).to_owned()).collect();
            let node = self.node();
            missing.extend((!ready(&node)).then(|| "the node".to_owned()));
            (missing, node)
        };
        let (_, node) = match poll_until(UP, shown, |(missing, _)| missing.is_empty()) {
            Ok(shown) => shown,
            Err((missing, _)) => {
                panic!("the API server misses {missing:?}: {}", self.world.agent.log_tail(40));
            }
        };
        let took = begun.elapsed();
        say_loudly(&format!("kubeadm's control plane is up after {since}: {took:.2?}"));
        node
    }

    fn node(&self) -> Value {
        self.admin.find(&format!("{NODES}/{NODE_NAME}")).unwrap_or_default()
    }

    /// Kills all processes of a pod; other containers run when this returns.
    fn kill(&self, part: &str) {
        let before = self.world.running_ids(part);
        let sandboxes = self.world.sandboxes(part);
        self.world.kill_sandbox(&sandboxes[0].id);
        before.iter().for_each(|id| self.world.kill_container_if_there(id));
        let fresh =
            |ids: &Vec<String>| !ids.is_empty() && ids.iter().all(|id| !before.contains(id));
        let ids = || self.world.running_ids(part);
        self.world.wait_until(&format!("{part} comes back"), ids, fresh);
    }

    /// Stops the API server: connections to it open and nothing is answered.
    fn freeze_api_server(&self) -> Stopped {
        let id = self.world.running_id("kube-apiserver", "kube-apiserver");
        Stopped::stop(Pid::from_raw(self.world.cri.container_pid(&id)))
    }

    /// The machine loses power and is started again: only what is on a disk is left.
    fn reboot(&self) {
        let (agent, containerd) = (&self.world.agent, self.world.runtime.containerd());
        agent.kill();
        containerd.lose_power();
        for mount in mounts_under(&agent.root_dir()) {
            umount2(&mount, MntFlags::MNT_DETACH).unwrap();
        }
        fs::remove_dir_all(agent.run_dir()).unwrap();
        fs::create_dir(agent.run_dir()).unwrap();
        agent.on_another_boot("11111111-2222-3333-4444-555555555555");
        containerd.start_again();
        agent.start();
    }
}

/// The manifests are as kubeadm writes them; only the host paths have the directory of the test in
/// front.
#[test]
fn the_control_plane_of_kubeadm_runs_and_comes_back() {
    let Some(plane) = Plane::prepare() else { return };
    let world = &plane.world;
    world.agent.start();
    let node = plane.wait_up("the first start");

    for part in PARTS {
        plane.kill(part);
    }
    plane.wait_up("each pod was killed");

    // The agent dies while its API server hangs: the next one finds its pods without it.
    let running = plane.running();
    let frozen = plane.freeze_api_server();
    world.agent.kill();
    world.agent.start();
    world.wait("etcd is found again", |status| status.runs("etcd"));
    assert_eq!(plane.running()["etcd"], running["etcd"]);
    // And it dies once more, together with the API server.
    world.agent.kill();
    world.container_killer(&running["kube-apiserver"][0])();
    drop(frozen);
    world.agent.start();
    plane.wait_up("the agent and its API server were killed");
    assert_eq!(plane.running()["etcd"], running["etcd"], "what runs is left alone");

    plane.reboot();
    let after = plane.wait_up("a reboot");
    assert_eq!(uid(&after), uid(&node), "the data of etcd are there");
    // An API server takes its whole grace period to end while somebody watches anything.
    let ids = world.running_ids("kube-apiserver");
    PARTS.iter().for_each(|part| world.remove(&format!("{part}.yaml")));
    world.wait("the API server is told to end", |status| {
        status.pod("kube-apiserver").is_none_or(|pod| pod.terminating)
    });
    ids.iter().for_each(|id| world.kill_container_if_there(id));
    plane.world.finish();
}

//! The runtime of the model world: it carries actions out.

use super::{Fault, OWNER, Program, STEP, Want, World, admitted};
use crate::{
    model::{
        ContainerId, ContainerState, NetworkMode, ObservedContainer, ObservedSandbox, PodUid,
        SandboxState,
    },
    plan::{
        Action, ContainerKind, Failure, Incarnation, KillDeadline, KillPod, KillPurpose, Outcome,
        Pull, Resize, Restart, StartContainer, Step, Taken,
    },
    podspec::{
        any_container_of, cgroup_amounts, container_amounts, container_hash, needed_images,
        with_amounts_of,
    },
};
use std::{sync::Arc, time::Duration};

impl World {
    /// Takes the next fault when it is one of these.
    fn fails(&mut self, faults: &[Fault]) -> Option<Fault> {
        let fault = *self.faults.front().filter(|fault| faults.contains(fault))?;
        self.faults.pop_front();
        Some(fault)
    }

    fn failed(uid: &PodUid, step: Step, reason: &str, message: &str) -> Outcome {
        Outcome::Failed(Failure {
            uid: uid.clone(),
            step,
            reason: reason.to_owned(),
            message: message.to_owned(),
            taken: None,
            left: None,
        })
    }

    fn new_id(&mut self, prefix: &str) -> String {
        self.next_id += 1;
        format!("{prefix}{}", self.next_id)
    }

    fn kill_pod(&mut self, uid: PodUid, kill: &KillPod) -> Outcome {
        if let KillPurpose::Retire { deadline } = &kill.purpose {
            let pod = None;
            let record = self.records.entry(uid.clone()).or_insert_with(|| Incarnation {
                uid: uid.clone(),
                pod,
                started_at: None,
                kill: None,
                terminal: None,
                deleted: false,
                interrupted: Vec::new(),
            });
            record.kill = Some(*deadline);
        }
        if let (KillPurpose::Terminal, Some(record)) = (&kill.purpose, self.records.get_mut(&uid)) {
            record.deleted |= record.terminal.is_none();
        }
        if let (KillPurpose::Shutdown, Some(record)) = (&kill.purpose, self.records.get_mut(&uid)) {
            record.interrupted.extend(kill.containers().map(|c| c.id.clone()));
        }
        if self.fails(&[Fault::Kill]).is_some() {
            Self::failed(&uid, Step::KillPod, "FailedKillPod", "cannot kill")
        } else {
            for container in kill.containers() {
                self.end_or_settle(&container.id);
            }
            for sandbox in &mut self.truth.sandboxes {
                if kill.sandboxes.contains(&sandbox.id) {
                    sandbox.state = SandboxState::NotReady;
                }
            }
            let containers = kill.containers().map(|c| c.id.clone()).collect();
            let (sandboxes, exit_matters) = (kill.sandboxes.clone(), kill.exit_matters());
            Outcome::PodKilled { uid, containers, sandboxes, exit_matters }
        }
    }

    /// As `worker::records`: a removal that has begun is finished, whatever is wanted later.
    fn begin_removal(&mut self, uid: &PodUid) {
        let orders = self.orders();
        let deadline = KillDeadline { at: self.now.boot, grace_seconds: 0 };
        if let Some(record) = self.records.get_mut(uid)
            && orders.retires(uid, Some(record))
        {
            record.kill = Some(deadline);
        }
    }

    pub(super) fn execute(&mut self, action: &Action) -> Outcome {
        self.pass_time(STEP);
        let uid = action.uid().clone();
        self.note(&action.to_string());
        if matches!(
            action,
            Action::RemoveContainer(_) | Action::RemoveSandbox(_) | Action::CleanUp { .. }
        ) {
            self.begin_removal(&uid);
        }
        let outcome = match action {
            Action::PreparePod { .. } => {
                let outcome = self.prepare(&uid);
                self.volumes_current |= outcome.is_success();
                outcome
            }
            Action::CreateSandbox(create) => self.create_sandbox(&uid, create.attempt),
            Action::StartContainer(start) => self.start(start),
            Action::Resize(resize) => self.resize(resize),
            Action::KillContainer(kill) => {
                if self.fails(&[Fault::Kill]).is_some() {
                    let (container, id) = (kill.name.clone(), kill.id.clone());
                    Self::failed(&uid, Step::KillContainer { container, id }, "FailedKillPod", "no")
                } else {
                    self.end_or_settle(&kill.id);
                    let exit_matters = kill.restart == Restart::ByPolicy;
                    Outcome::ContainerKilled { uid, id: kill.id.clone(), exit_matters }
                }
            }
            Action::KillPod(kill) => self.kill_pod(uid, kill),
            Action::RemoveContainer(remove) => {
                let id = remove.id.clone();
                if self.fails(&[Fault::Remove]).is_some() {
                    Self::failed(&uid, Step::RemoveContainer { id }, "", "cannot remove")
                } else {
                    let alive =
                        self.truth.containers.iter().any(|c| c.id == id && c.state.is_running());
                    assert!(!alive, "{id} is removed while it runs:{}", self.take_trace());
                    self.truth.containers.retain(|c| c.id != id);
                    if self.is_retiring(&uid) {
                        self.ran_once.remove(&(uid.clone(), remove.name.clone()));
                    }
                    Outcome::ContainerRemoved { uid, id }
                }
            }
            Action::RemoveSandbox(remove) => {
                let id = remove.id.clone();
                self.truth.sandboxes.retain(|s| s.id != id);
                self.hidden.retain(|s| s.id != id);
                self.truth.containers.retain(|c| c.sandbox_id != id);
                Outcome::SandboxRemoved { uid, id }
            }
            Action::Release { .. } => {
                if self.fails(&[Fault::Release]).is_some() {
                    Self::failed(&uid, Step::Release, "FailedCleanUp", "volume is busy")
                } else {
                    self.prepared.remove(&uid);
                    Outcome::Released { uid }
                }
            }
            Action::CleanUp { .. } => {
                if self.fails(&[Fault::CleanUp]).is_some() {
                    Self::failed(&uid, Step::CleanUp, "", "volume is busy")
                } else {
                    self.records.remove(&uid);
                    self.prepared.remove(&uid);
                    self.loops.retain(|(of, _), _| *of != uid);
                    self.status = None;
                    Outcome::CleanedUp { uid }
                }
            }
        };
        self.check(action);
        outcome
    }

    /// True when the incarnation is removed: what runs under its uid later begins anew.
    fn is_retiring(&self, uid: &PodUid) -> bool {
        let wanted = matches!(&self.want, Want::Run(pod) if pod.uid == *uid);
        !wanted || self.records.get(uid).is_some_and(|record| record.kill.is_some())
    }

    fn resize(&mut self, resize: &Resize) -> Outcome {
        let fails = self.fails(&[Fault::Resize]).is_some();
        let count = if fails { 1 } else { resize.containers.len() };
        let done: Vec<_> = resize.containers.iter().take(count).cloned().collect();
        self.resized.extend(done.iter().map(|one| (one.id.clone(), one.to)));
        let uid = resize.uid.clone();
        if fails {
            return Self::failed(&uid, Step::Resize { done }, "ResizeError", "below usage");
        }
        let Want::Run(pod) = &self.want else { panic!("resizes what nobody wants") };
        let cgroup = cgroup_amounts(pod.pod.spec.as_ref().unwrap());
        let cgroup = resize.finish.then_some(cgroup);
        self.cgroups.extend(cgroup.map(|cgroup| (uid.clone(), cgroup)));
        Outcome::Resized { uid, containers: done, cgroup }
    }

    fn end_or_settle(&mut self, id: &ContainerId) {
        self.ends.remove(id);
        self.finished.insert(id.clone(), self.now.boot);
        let at = self.now.wall;
        if let Some(container) = self.truth.containers.iter_mut().find(|c| c.id == *id) {
            container.state = ContainerState::Exited {
                started_at: None,
                finished_at: at,
                exit_code: self.on_term,
                reason: if self.on_term == 0 { "Completed" } else { "Error" }.into(),
                message: "".into(),
            };
        }
    }

    fn prepare(&mut self, uid: &PodUid) -> Outcome {
        let Want::Run(pod) = &self.want else { panic!("prepares what nobody wants") };
        assert_eq!(pod.uid, *uid);
        assert!(
            self.end.is_none(),
            "prepares what has ended:{}",
            self.trace.join(
                "
"
            )
        );
        let wall = self.now.wall;
        let record = self.records.entry(uid.clone()).or_insert_with(|| admitted(pod, wall));
        record.pod = Some(match (&self.resize_wait, &record.pod) {
            (Some(_), Some(before)) => Arc::new(with_amounts_of(&pod.pod, before)),
            (Some(_) | None, _) => Arc::clone(&pod.pod),
        });
        let spec = record.pod.as_ref().and_then(|pod| pod.spec.clone()).unwrap();
        self.prepared.insert(uid.clone());
        // A cgroup in which something runs is left as it is.
        let inhabited = |s: &ObservedSandbox| s.uid == *uid && s.state == SandboxState::Ready;
        let runs = self.truth.sandboxes.iter().chain(&self.hidden).any(inhabited);
        let cgroup = (!runs).then(|| cgroup_amounts(&spec));
        self.cgroups.extend(cgroup.map(|cgroup| (uid.clone(), cgroup)));
        if self.fails(&[Fault::Prepare]).is_some() {
            return Self::failed(uid, Step::Prepare, "FailedMount", "no such device");
        }
        Outcome::Prepared { uid: uid.clone(), cgroup }
    }

    fn create_sandbox(&mut self, uid: &PodUid, attempt: u32) -> Outcome {
        assert!(self.end.is_none(), "starts what has ended:{}", self.trace.join("\n"));
        let step = Step::Sandbox { attempt };
        let all = self.truth.sandboxes.iter().chain(&self.hidden);
        let taken = all.into_iter().find(|s| s.uid == *uid && s.attempt == attempt);
        if let Some(taken) = taken {
            let by = Taken::ByUs(taken.id.to_string());
            let reason = "FailedCreatePodSandBox".to_owned();
            let message = format!("name is reserved for {}", taken.id);
            let left = None;
            return Outcome::Failed(Failure {
                uid: uid.clone(),
                step,
                reason,
                message,
                taken: Some(by),
                left,
            });
        }
        let fault = self.fails(&[Fault::Sandbox, Fault::SandboxHalf, Fault::NoAddress]);
        if fault == Some(Fault::Sandbox) {
            return Self::failed(uid, step, "FailedCreatePodSandBox", "no address left");
        }
        let host =
            matches!(&self.want, Want::Run(pod) if crate::podspec::is_host_network(&pod.pod));
        let sandbox = ObservedSandbox {
            id: self.new_id("s").into(),
            uid: uid.clone(),
            attempt,
            state: SandboxState::Ready,
            created_at: self.now.wall,
            ips: if host || fault == Some(Fault::NoAddress) {
                Vec::new()
            } else {
                vec!["10.0.0.7".parse().unwrap()]
            },
            network: if host { NetworkMode::Node } else { NetworkMode::Pod },
            owner: Some(OWNER.into()),
        };
        self.truth.sandboxes.push(sandbox.clone());
        if fault == Some(Fault::SandboxHalf) {
            return Self::failed(uid, step, "FailedCreatePodSandBox", "deadline exceeded");
        }
        Outcome::SandboxCreated(sandbox)
    }

    /// What goes wrong before a container exists.
    fn fail_before_create(
        &mut self,
        start: &StartContainer,
        name: &str,
        image: &str,
    ) -> Option<Outcome> {
        let step =
            |pull_tried| Step::Image { container: name.into(), image: image.into(), pull_tried };
        let faults = [Fault::Pull, Fault::ImageNever, Fault::Config, Fault::Create];
        let fault = self.fails(&faults)?;
        let (step, reason, message) = if fault == Fault::Config {
            let step = Step::Config { container: name.into() };
            (step, "CreateContainerConfigError", "no such user")
        } else if fault == Fault::Create {
            let restart_count = start.restart_count.unwrap_or(0);
            let step = Step::Create { container: name.into(), restart_count };
            (step, "CreateContainerError", "no space")
        } else if fault == Fault::ImageNever {
            (step(false), "ErrImageNeverPull", "not present")
        } else if !matches!(start.pull, Pull::NotNow(_)) {
            (step(true), "ErrImagePull", "registry is down")
        } else {
            self.faults.push_front(fault);
            (step(false), "ImagePullBackOff", "still absent")
        };
        Some(Self::failed(&start.uid, step, reason, message))
    }

    fn start(&mut self, start: &StartContainer) -> Outcome {
        self.check_back_off(start);
        assert!(self.end.is_none(), "starts what has ended:{}", self.trace.join("\n"));
        let Want::Run(pod) = &self.want else { panic!("starts what nobody wants") };
        let container = any_container_of(&pod.pod, &start.name).unwrap().into_owned();
        let made_with = container_amounts(&pod.pod, &container);
        let name: Box<str> = start.name.clone();
        let image: Box<str> = container.image.clone().unwrap_or_default().into();
        // The one that is pulled first.
        let first = needed_images(&pod.pod, &container).next().unwrap().image.to_owned();
        if let Some(failed) = self.fail_before_create(start, &name, &first) {
            return failed;
        }
        let home = self.truth.sandboxes.iter().find(|s| s.id == start.sandbox_id);
        assert_eq!(home.map(|s| s.state), Some(SandboxState::Ready), "{start:?}");
        let id = match &start.created {
            Some(id) => id.clone(),
            None => self.new_id("c").into(),
        };
        let running = ContainerState::Running { started_at: self.now.wall };
        let started = ObservedContainer {
            sandbox_id: start.sandbox_id.clone(),
            uid: start.uid.clone(),
            name,
            restart_count: start.restart_count.unwrap_or_default(),
            made_with: Some(Box::new(made_with)),
            hash: container_hash(&container).into(),
            created_at: self.now.wall,
            image: image.clone(),
            image_ref: format!("sha256:{image}").into(),
            ..ObservedContainer::example(id.as_str(), running)
        };
        if start.kind == ContainerKind::Ephemeral {
            let fresh = self.ran_once.insert((start.uid.clone(), start.name.clone()));
            assert!(fresh, "{} runs again:{}", start.name, self.trace.join("\n"));
        }
        self.truth.containers.retain(|c| c.id != id);
        self.truth.containers.push(started.clone());
        let fault = self.fails(&[Fault::Start, Fault::StartUnanswered]);
        if fault == Some(Fault::Start) {
            let failed = self.truth.containers.last_mut().unwrap();
            failed.state = ContainerState::Exited {
                started_at: None,
                finished_at: self.now.wall,
                exit_code: 128,
                reason: "StartError".into(),
                message: "exec failed".into(),
            };
            self.finished.insert(id.clone(), self.now.boot);
            return Self::not_started(started, "exec failed");
        }
        let programs = self.programs.get_mut(&*start.name);
        let program = match programs {
            Some(programs) if programs.len() > 1 => programs.pop_front(),
            Some(programs) => programs.front().copied(),
            None => None,
        };
        let default = match start.kind {
            ContainerKind::Init => Program::Ends(1, 0),
            ContainerKind::Sidecar | ContainerKind::Regular | ContainerKind::Ephemeral => {
                Program::Forever
            }
        };
        if let Program::Ends(after, code) = program.unwrap_or(default) {
            self.ends.insert(id, (self.now.boot + Duration::from_secs(after), code));
        }
        if fault == Some(Fault::StartUnanswered) {
            return Self::not_started(started, "transport is closing");
        }
        Outcome::ContainerStarted(started)
    }

    fn not_started(container: ObservedContainer, message: &str) -> Outcome {
        let (uid, name) = (container.uid.clone(), container.name.clone());
        let step = Step::Start { container: name, id: container.id.clone() };
        let Outcome::Failed(failure) = Self::failed(&uid, step, "RunContainerError", message)
        else {
            unreachable!()
        };
        let left = ObservedContainer { state: ContainerState::Created, ..container };
        Outcome::Failed(Failure { left: Some(Box::new(left)), ..failure })
    }
}

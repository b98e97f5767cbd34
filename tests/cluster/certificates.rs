//! How a node comes by its client certificate and keeps it: kubeadm's bootstrap token, a real
//! authority that signs, and people who approve, deny and forget. The agent asks the API server
//! itself: the link of other tests can show no certificate whose key it does not have.

use super::{
    agent::{Member, hasty, ready},
    controlplane::{
        Options,
        client::Client,
        kubeconfig::{Kubeconfig, replace},
        pki::Validity,
    },
    support::{agent::NODE_NAME, manifest::Pod},
};
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
/// Kubeadm's group of nodes that are about to join.
const JOINING: &str = "system:bootstrappers:kubeadm:default-node-token";
const TOKEN: &str = "abcdef.0123456789abcdef";

/// An agent that has a bootstrap kubeconfig and no other one.
struct Joining {
    member: Member,
    kubeconfig: PathBuf,
    bootstrap: PathBuf,
}

impl Joining {
    /// The agent does not run yet. What kubeadm makes for joining nodes is there, but nobody
    /// approves.
    fn prepare() -> Option<Self> {
        let options = Options::default().controller_manager(&[]);
        let member = Member::prepare(&options, &hasty())?;
        let dir = member.world.slot.dir().join("etc");
        fs::create_dir(&dir).unwrap();
        let (kubeconfig, bootstrap) = (dir.join("kubelet.conf"), dir.join("bootstrap.conf"));
        let agent = &member.world.agent;
        agent.remove_flags("--kubeconfig=");
        agent.add_flag(format!("--kubeconfig={}", kubeconfig.display()));
        agent.add_flag(format!("--bootstrap-kubeconfig={}", bootstrap.display()));
        let joining = Self { member, kubeconfig, bootstrap };
        joining.write_bootstrap();
        joining
            .member
            .plane
            .admin
            .create("/api/v1/namespaces/kube-system/secrets", &token())
            .unwrap()
            .ok();
        joining.bind("joining", "system:node-bootstrapper");
        Some(joining)
    }

    fn write_bootstrap(&self) {
        let authority = self.bootstrap.with_file_name("ca.crt");
        fs::write(&authority, self.member.plane.authority().pem()).unwrap();
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: join\n\
             clusters:\n- name: c\n  cluster: {{ server: \"https://{}\", certificate-authority: ca.crt }}\n\
             users:\n- name: u\n  user: {{ token: {TOKEN} }}\n\
             contexts:\n- name: join\n  context: {{ cluster: c, user: u }}\n",
            self.member.plane.address(),
        );
        replace(&self.bootstrap, &text);
    }

    /// Lets nodes that are about to join do what a role says.
    fn bind(&self, name: &str, role: &str) {
        let binding = json!({
            "metadata": { "name": name },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": JOINING }],
        });
        self.member.plane.admin.create(BINDINGS, &binding).unwrap().ok();
    }

    fn directory(&self) -> PathBuf {
        self.member.world.agent.root_dir().join("pki")
    }

    fn current(&self) -> PathBuf {
        self.directory().join("kubelet-client-current.pem")
    }

    /// The names of all requests that are there.
    fn requests(&self) -> Vec<String> {
        names(&self.member.plane.admin.get(REQUESTS))
    }

    /// The one request that waits for somebody.
    #[track_caller]
    fn wait_for_request(&self) -> String {
        self.member.wait_told("waits for approval (kubectl certificate approve node-csr-");
        let all = self.member.plane.admin.get(REQUESTS);
        let items = all["items"].as_array().unwrap();
        let open: Vec<_> =
            items.iter().filter(|one| one["status"]["conditions"].is_null()).collect();
        assert_eq!(open.len(), 1, "{all:#}");
        let spec = &open[0]["spec"];
        assert_eq!(spec["signerName"], "kubernetes.io/kube-apiserver-client-kubelet");
        assert_eq!(spec["usages"], json!(["digital signature", "client auth"]));
        assert_eq!(spec["username"], "system:bootstrap:abcdef");
        open[0]["metadata"]["name"].as_str().unwrap().to_owned()
    }

    #[track_caller]
    fn wait_joined(&self) {
        self.member.wait("the node is Ready", || self.member.node(), ready);
        self.member.wait_untroubled();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&self.kubeconfig), mode(&self.current())), (0o600, 0o600));
        assert!(!self.directory().join("kubelet-client.key.tmp").exists());
    }
}

fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().unwrap();
    items.iter().map(|one| one["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

fn token() -> Value {
    json!({
        "metadata": { "name": "bootstrap-token-abcdef" },
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "token-id": "abcdef",
            "token-secret": "0123456789abcdef",
            "usage-bootstrap-authentication": "true",
            "auth-extra-groups": JOINING,
        },
    })
}

/// Denied, killed, and at last approved; a static pod runs all the while.
#[test]
fn a_node_joins_when_a_person_approves_its_request() {
    let Some(joining) = Joining::prepare() else { return };
    let (world, plane) = (&joining.member.world, &joining.member.plane);
    world.drop_pod(&Pod::running("web"));
    world.agent.start();
    world.wait_running("web");
    let denied = joining.wait_for_request();
    let page = String::from_utf8(world.agent.cli(&["status"]).stdout).unwrap();
    assert!(page.contains("Cluster: the node has no client certificate yet\n"), "{page}");
    assert!(page.contains(&format!("kubectl certificate approve {denied}")), "{page}");
    assert!(!page.contains("credentials:"), "{page}");
    plane.kubectl_text(&["certificate", "deny", &denied]);
    joining.member.wait_told(&format!("{denied} was denied"));
    assert!(!joining.kubeconfig.exists());

    world.agent.signal(nix::libc::SIGHUP);
    let second = joining.wait_for_request();
    assert_ne!(second, denied, "another key");
    // Whatever it was about to do, the next one goes on with the same request.
    world.agent.kill();
    world.agent.start();
    assert_eq!(joining.wait_for_request(), second);
    // The controller manager forgets requests that nobody has answered.
    plane.admin.delete(&format!("{REQUESTS}/{second}")).unwrap().ok();
    joining.member.wait("it is sent again", || joining.requests(), |all| all.contains(&second));
    plane.kubectl_text(&["certificate", "approve", &second]);
    joining.wait_joined();
    assert_eq!(joining.requests().len(), 2);
    joining.member.wait("the mirror is Ready", || joining.member.mirror("web"), ready);

    // With the kubeconfig there, nothing more is requested, and the bootstrap token may go.
    fs::remove_file(&joining.bootstrap).unwrap();
    world.agent.kill();
    world.agent.start();
    joining.member.wait_renewed();
    joining.member.wait_untroubled();
    assert_eq!(joining.requests().len(), 2);
    joining.member.finish();
}

/// A file that can't be written costs no second request.
#[test]
fn a_kubeconfig_that_cannot_be_written_is_written_later() {
    let Some(joining) = Joining::prepare() else { return };
    joining.bind("approved", "system:certificates.k8s.io:certificatesigningrequests:nodeclient");
    // A directory is in its way, which the agent must not remove.
    let unfinished = joining.kubeconfig.with_file_name("kubelet.conf.unfinished");
    fs::create_dir(&unfinished).unwrap();
    joining.member.world.agent.start();
    joining.member.wait_told("kubelet.conf: Is a directory");
    fs::remove_dir(&unfinished).unwrap();
    joining.member.world.agent.signal(nix::libc::SIGHUP);
    joining.wait_joined();
    assert_eq!(joining.requests().len(), 1);
    joining.member.finish();
}

/// A person did not wait for the approval.
#[test]
fn a_kubeconfig_that_a_person_has_written_meanwhile_is_kept() {
    let Some(joining) = Joining::prepare() else { return };
    let (world, plane) = (&joining.member.world, &joining.member.plane);
    world.agent.start();
    let request = joining.wait_for_request();
    let own = plane.node_identity_for(NODE_NAME, Validity::Long);
    let kubeconfig = Kubeconfig::new(joining.member.plane.address(), &plane.authority(), &own);
    kubeconfig.write(&joining.kubeconfig);
    let written = fs::read_to_string(&joining.kubeconfig).unwrap();
    joining.member.wait("the node is Ready", || joining.member.node(), ready);
    plane.kubectl_text(&["certificate", "approve", &request]);
    let kept = "the kubeconfig was changed meanwhile, and is kept";
    joining.member.wait("it is kept", || world.agent.log(), |log| log.contains(kept));
    assert_eq!(fs::read_to_string(&joining.kubeconfig).unwrap(), written);
    joining.member.finish();
}

/// The certificate of the kubeconfig has expired while the machine was off, and then it is gone.
#[test]
fn an_expired_or_lost_certificate_is_requested_anew() {
    let Some(joining) = Joining::prepare() else { return };
    let plane = &joining.member.plane;
    joining.bind("approved", "system:certificates.k8s.io:certificatesigningrequests:nodeclient");
    let expired = plane.node_identity_for(NODE_NAME, Validity::Expired);
    let address = joining.member.plane.address();
    Kubeconfig::new(address, &plane.authority(), &expired).write(&joining.kubeconfig);
    joining.member.world.agent.start();
    joining.wait_joined();
    let written = fs::read_to_string(&joining.kubeconfig).unwrap();
    assert!(written.contains(joining.current().to_str().unwrap()), "{written}");

    joining.member.world.agent.kill();
    fs::remove_dir_all(joining.directory()).unwrap();
    joining.member.world.agent.start();
    joining.member.wait("there is another one", || joining.current().exists(), |there| *there);
    joining.member.wait_renewed();
    joining.wait_joined();
    assert_eq!(joining.requests().len(), 2);
    joining.member.finish();
}

/// No controller approves such requests: a person does, who has looked at the names.
#[test]
fn the_https_api_shows_a_certificate_of_the_cluster() {
    let options = Options::default().controller_manager(&[]);
    let settings = hasty().kubelet("serverTLSBootstrap: true\n");
    let Some(member) = Member::prepare(&options, &settings) else { return };
    let member = member.started();
    let (plane, agent) = (&member.plane, &member.world.agent);
    member.wait_told("serving certificate: the certificate signing request node-csr-");
    let requests = plane.admin.get(REQUESTS);
    let [name] = &names(&requests)[..] else { panic!("{requests:#}") };
    let spec = &requests["items"][0]["spec"];
    assert_eq!(spec["signerName"], "kubernetes.io/kubelet-serving");
    assert_eq!(spec["username"], format!("system:node:{NODE_NAME}"));
    let address = member.node()["status"]["addresses"].clone();
    let address = address.as_array().unwrap().iter().find(|one| one["type"] == "InternalIP");
    let address: std::net::IpAddr = address.unwrap()["address"].as_str().unwrap().parse().unwrap();
    // A client that believes the cluster's authority alone.
    let server = std::net::SocketAddr::from((address, agent.api_port()));
    let client = Client::new(server, &plane.authority(), None);
    let status = || client.send(hyper::Method::GET, "/pods", None).map(|answer| answer.status);
    assert!(status().is_err(), "there is no certificate yet");
    plane.kubectl_text(&["certificate", "approve", name]);
    _ = member.wait("the HTTPS API answers", status, |status| *status == Ok(401));
    member.wait_untroubled();

    agent.kill();
    agent.start();
    _ = member.wait("the HTTPS API answers again", status, |status| *status == Ok(401));
    member.wait_renewed();
    assert_eq!(names(&plane.admin.get(REQUESTS)).len(), 1);
    member.finish();
}

/// The kubeconfig is left as it is: what was renewed stands for its certificate.
#[test]
fn a_certificate_is_renewed_before_it_expires() {
    let options = Options::default().controller_manager(&[]);
    let settings = hasty().kubelet("rotateCertificates: true\n");
    let Some(member) = Member::prepare(&options, &settings) else { return };
    let approves = json!({
        "metadata": { "name": "renewed" },
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
        },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes" }],
    });
    member.plane.admin.create(BINDINGS, &approves).unwrap().ok();
    // So that the certificate is not over before anybody signs another one.
    let account = "/api/v1/namespaces/default/serviceaccounts/default";
    let admin = &member.plane.admin;
    _ = member.wait("controllers work", || admin.find(account).is_some(), |made| *made);
    let lasts = Duration::from_secs(40);
    let path = member.plane.node_kubeconfig(NODE_NAME, member.plane.address());
    let soon_over = member.plane.node_identity_for(NODE_NAME, Validity::EndsIn(lasts));
    Kubeconfig::new(member.plane.address(), &member.plane.authority(), &soon_over).write(&path);
    let before = fs::read_to_string(&path).unwrap();
    let member = member.started();
    let current = member.world.agent.root_dir().join("pki/kubelet-client-current.pem");
    member.wait("a certificate is obtained", || current.exists(), |there| *there);
    let first = member.plane.client(&soon_over);
    let answer = || first.send(hyper::Method::GET, "/version", None).map(|answer| answer.status);
    _ = member.wait("the first one has expired", answer, |status| *status == Ok(401));
    member.wait_renewed();
    member.wait_untroubled();
    let until =
        || member.world.agent.status().unwrap().node.cluster.clone().unwrap().certificate_until;
    let day = jiff::Timestamp::now() + Duration::from_secs(24 * 3600);
    assert!(until().is_some_and(|until| until > day), "{:?}", until());
    assert_eq!(fs::read_to_string(&path).unwrap(), before);

    member.world.agent.kill();
    member.world.agent.start();
    member.wait_renewed();
    member.wait_untroubled();
    let requests = member.plane.admin.get(REQUESTS);
    assert_eq!(names(&requests).len(), 1, "{requests:#}");
    member.finish();
}

//! The HTTPS API of a node, as people use it: kubectl asks a real kube-apiserver, which asks the
//! agent. And a flood of TLS handshakes by clients without a certificate.

use crate::{
    api_rows::{ATTACKERS, ApiRow, FORWARDED, LOG_MB},
    cluster::Programs,
    controlplane::{ControlPlane, Options},
    measure::Plan,
    objects::{LEASES, PODS},
    probed::Server,
    results::{Figures, Row},
    stage::{Candidate, Moment, Stage, pause, seconds},
    support::{agent::NODE_NAME, block_on, manifest::Pod, world::full_name},
};
use std::{
    fs,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    process::{Child, ChildStdout},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
    time::{Instant, timeout},
};
use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, client::Resumption, pki_types::ServerName},
};

/// How often each short command of kubectl is run.
const TRIPS: usize = 21;
/// How often the whole log is read.
const READS: usize = 3;
/// Bytes of a line of the log, with its end.
const LINE: usize = 100;
/// How long an attacker waits for a handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Between two looks at the lease and at the agent's memory.
const PACE: Duration = Duration::from_millis(200);

/// One round. The floor is the same command as a CRI call, without kubectl and API server.
pub fn api(candidate: Candidate, plan: &Plan, programs: Programs<'_>, figures: &mut Figures) {
    let Some(programs_of_plane) = programs.plane else { return };
    // The log has to stay as it is written.
    let lines = "containerLogMaxSize: 8Gi\nclusterDNS: [192.0.2.1]\n";
    let mut stage = Stage::with(candidate, programs.kubelet, lines);
    if let Some(floor) = stage.floor() {
        let started = floor.run(&Pod::running("web"));
        for _ in 0..TRIPS {
            let begun = Instant::now();
            floor.exec(&started, &["true"]);
            figures.add(Row::Api(ApiRow::Exec), candidate, begun.elapsed().as_secs_f64());
        }
        return;
    }
    let plane = ControlPlane::start(stage.slot(), programs_of_plane, &Options::default());
    stage.join(&plane.node_kubeconfig(NODE_NAME, plane.address()));
    serve_to_cluster(&mut stage, &plane);
    stage.start();
    let server = Server::start();
    let pod = Pod::running("web").set("hostNetwork", true);
    stage.drop_pods(std::slice::from_ref(&pod));
    let act = Act { candidate, plan, pod, server, stage, plane };
    act.play(figures);
}

/// Both agents show a certificate of the same kind and let the cluster's clients in.
fn serve_to_cluster(stage: &mut Stage, plane: &ControlPlane) {
    let dir = stage.slot().dir().join("serving");
    fs::create_dir_all(&dir).unwrap();
    let identity = plane.authority().server(&[Ipv4Addr::LOCALHOST.into()]);
    for (file, content) in [
        ("tls.crt", &*identity.certificate_pem),
        ("tls.key", &identity.key_pem),
        ("clients.crt", plane.authority().pem()),
    ] {
        fs::write(dir.join(file), content).unwrap();
    }
    for flag in [
        format!("--tls-cert-file={}", dir.join("tls.crt").display()),
        format!("--tls-private-key-file={}", dir.join("tls.key").display()),
        format!("--client-ca-file={}", dir.join("clients.crt").display()),
        // The API server asks at the node's address.
        "--address=0.0.0.0".to_owned(),
        "--anonymous-auth=false".to_owned(),
        "--authentication-token-webhook=true".to_owned(),
        "--authorization-mode=Webhook".to_owned(),
    ] {
        stage.add_flag(flag);
    }
}

/// Fields are dropped in this order: the agent before its control plane.
struct Act<'a> {
    candidate: Candidate,
    plan: &'a Plan,
    pod: Pod,
    server: Server,
    stage: Stage,
    plane: ControlPlane,
}

impl Act<'_> {
    fn play(&self, figures: &mut Figures) {
        let name = full_name("web");
        self.stage.wait("the pod is shown as running", PACE, || {
            let shown = self.plane.admin.find(&format!("{PODS}/{name}"))?;
            (shown["status"]["phase"] == "Running").then_some(())
        });
        self.trips(ApiRow::Exec, &["exec", &name, "--", "true"], figures);
        self.forward(&name, figures);
        write_log(&self.stage.log_of(&self.pod));
        self.trips(ApiRow::LogTail, &["logs", &name, "--tail=10"], figures);
        self.whole_log(&name, figures);
        self.attack(figures);
    }

    /// A command of kubectl, from its start to its end. The first one, which fills caches, does not
    /// count.
    fn trips(&self, row: ApiRow, arguments: &[&str], figures: &mut Figures) {
        self.plane.kubectl_text(arguments);
        for _ in 0..TRIPS {
            let begun = Instant::now();
            self.plane.kubectl_text(arguments);
            figures.add(Row::Api(row), self.candidate, begun.elapsed().as_secs_f64());
        }
    }

    fn whole_log(&self, name: &str, figures: &mut Figures) {
        let agent = self.stage.agent().unwrap();
        for _ in 0..READS {
            let (used, begun) = (agent.cpu(), Instant::now());
            let admin = self.plane.admin_kubeconfig();
            let mut kubectl = self.plane.kubectl_command(&admin, &["logs", name]).spawn().unwrap();
            let bytes = count(kubectl.stdout.take().unwrap());
            let took = begun.elapsed().as_secs_f64();
            assert!(kubectl.wait().unwrap().success());
            assert_eq!(bytes, LOG_MB * 1_000_000);
            let used = agent.cpu().saturating_sub(used).as_secs_f64();
            crate::progress(&format!("    {took:.1} s, of which the agent computed {used:.1} s"));
            #[expect(clippy::cast_precision_loss, reason = "a thousand")]
            figures.add(Row::Api(ApiRow::LogRate), self.candidate, LOG_MB as f64 / took);
        }
    }

    /// Many connections at a time through one `kubectl port-forward`. The first time does not count.
    fn forward(&self, name: &str, figures: &mut Figures) {
        let forwarding = Forwarding::start(&self.plane, name, self.server.port());
        for number in 0..=self.plan.singles {
            let begun = Instant::now();
            block_on(async {
                let asked: JoinSet<_> = (0..FORWARDED).map(|_| ask(forwarding.address)).collect();
                for answered in asked.join_all().await {
                    answered.unwrap();
                }
            });
            if number > 0 {
                figures.add(
                    Row::Api(ApiRow::Forward),
                    self.candidate,
                    begun.elapsed().as_secs_f64(),
                );
            }
        }
    }

    /// Clients without a certificate shake hands as often as they can.
    fn attack(&self, figures: &mut Figures) {
        let agent = self.stage.agent().unwrap();
        let attack = Attack::start(&self.plane, self.stage.api_address());
        let (used, begun) = (agent.cpu(), Instant::now());
        let (mut renewals, mut most) = (vec![self.renewed()], 0.0_f64);
        while begun.elapsed() < self.plan.idle {
            pause(PACE);
            most = most.max(agent.memory_mib("VmRSS"));
            renewals.extend(self.plane.admin.find(&lease_path()).map(|lease| renewed(&lease)));
        }
        let took = begun.elapsed().as_secs_f64();
        let cpu = agent.cpu().saturating_sub(used).as_secs_f64();
        let (shaken, failed) = attack.end();
        // The gap that goes on at the end of the attack.
        let last = renewals[renewals.len() - 1];
        renewals.push(self.stage.wait("the lease is renewed", PACE, || {
            Some(self.renewed()).filter(|renewed| *renewed != last)
        }));
        crate::progress(&format!("    {failed} connections without a handshake"));
        #[expect(clippy::cast_precision_loss, reason = "some thousands")]
        figures.add(Row::Api(ApiRow::Handshakes), self.candidate, shaken as f64 / took);
        figures.add(Row::Api(ApiRow::LeaseGap), self.candidate, largest_gap(&renewals));
        figures.add(Row::Api(ApiRow::HandshakesCpu), self.candidate, 100.0 * cpu / took);
        figures.add(Row::Api(ApiRow::HandshakesRss), self.candidate, most);
    }

    fn renewed(&self) -> Moment {
        renewed(&self.plane.admin.get(&lease_path()))
    }
}

/// When a lease was renewed last.
fn renewed(lease: &serde_json::Value) -> Moment {
    let time: jiff::Timestamp = lease["spec"]["renewTime"].as_str().unwrap().parse().unwrap();
    i64::try_from(time.as_nanosecond()).unwrap()
}

fn lease_path() -> String {
    format!("{LEASES}/{NODE_NAME}")
}

/// The most seconds between two moments that follow each other.
fn largest_gap(moments: &[Moment]) -> f64 {
    moments.windows(2).map(|pair| seconds(pair[0], pair[1])).fold(0.0, f64::max)
}

/// Appends the log's megabytes, as the runtime would have written them.
fn write_log(path: &Path) {
    let text = format!("{}\n", "x".repeat(LINE - 1));
    let line = format!("2026-11-26T10:00:00.000000000Z stdout F {text}");
    let many = line.repeat(1_000_000 / LINE);
    let mut file = fs::File::options().append(true).open(path).unwrap();
    for _ in 0..LOG_MB {
        file.write_all(many.as_bytes()).unwrap();
    }
    // Otherwise the disk would be busy while the log is read.
    file.sync_all().unwrap();
}

/// How many bytes come until the end.
fn count(mut output: ChildStdout) -> u64 {
    let (mut buffer, mut bytes) = (vec![0; 1 << 20], 0);
    loop {
        match output.read(&mut buffer).unwrap() {
            0 => return bytes,
            length => bytes += length as u64,
        }
    }
}

/// A running `kubectl port-forward`.
struct Forwarding {
    kubectl: Child,
    address: SocketAddr,
    /// kubectl ends when nobody reads it.
    _output: BufReader<ChildStdout>,
}

impl Forwarding {
    fn start(plane: &ControlPlane, pod: &str, port: u16) -> Self {
        let ports = format!(":{port}");
        let arguments = ["port-forward", pod, "--address=127.0.0.1", &*ports];
        let mut kubectl =
            plane.kubectl_command(&plane.admin_kubeconfig(), &arguments).spawn().unwrap();
        let mut output = BufReader::new(kubectl.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        // `Forwarding from 127.0.0.1:41234 -> 8080`
        let address = line.split(' ').nth(2).and_then(|address| address.parse().ok());
        let address = address.unwrap_or_else(|| panic!("kubectl port-forward: {line:?}"));
        Self { kubectl, address, _output: output }
    }
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        self.kubectl.kill().unwrap();
        self.kubectl.wait().unwrap();
    }
}

/// Asks the server for something, and reads until its whole answer is there. The runtime keeps the
/// connection for a second longer.
async fn ask(address: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /forwarded HTTP/1.1\r\nHost: localhost\r\n\r\n").await?;
    let mut answer = Vec::with_capacity(512);
    while !answer.ends_with(b"ok\n") {
        if stream.read_buf(&mut answer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

/// Attackers, each on a thread of its own.
struct Attack {
    over: Arc<AtomicBool>,
    failed: Arc<AtomicUsize>,
    attackers: Vec<std::thread::JoinHandle<usize>>,
}

impl Attack {
    fn start(plane: &ControlPlane, server: SocketAddr) -> Self {
        let mut config = plane.authority().client_config(None);
        // Each handshake is a whole one.
        config.resumption = Resumption::disabled();
        let config = Arc::new(config);
        let (over, failed) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let attacker = |_| {
            let (config, over) = (Arc::clone(&config), Arc::clone(&over));
            let failed = Arc::clone(&failed);
            std::thread::spawn(move || {
                let mut shaken = 0;
                while !over.load(Ordering::Relaxed) {
                    let shaking = async { timeout(HANDSHAKE, shake_hands(&config, server)).await };
                    match block_on(shaking) {
                        Ok(Ok(())) => shaken += 1,
                        Ok(Err(_)) | Err(_) => _ = failed.fetch_add(1, Ordering::Relaxed),
                    }
                }
                shaken
            })
        };
        let attackers = (0..ATTACKERS).map(attacker).collect();
        Self { over, failed, attackers }
    }

    /// Ends it; gives the handshakes and the connections that came to none.
    fn end(self) -> (usize, usize) {
        self.over.store(true, Ordering::Relaxed);
        let shaken = self.attackers.into_iter().map(|attacker| attacker.join().unwrap()).sum();
        (shaken, self.failed.load(Ordering::Relaxed))
    }
}

async fn shake_hands(config: &Arc<ClientConfig>, server: SocketAddr) -> io::Result<()> {
    let stream = TcpStream::connect(server).await?;
    let name = ServerName::from(server.ip());
    TlsConnector::from(Arc::clone(config)).connect(name, stream).await.map(drop)
}

//! Requests: one function for all of them, with a deadline, on connections that notice when the
//! other side is gone.
//!
//! The content of the kubeconfig comes from [`super::connection`], read and checked.

use super::{
    ApiError, Credentials, REQUEST_DEADLINE, WRITE_DEADLINE, answer,
    tls::{self, TlsError},
};
use crate::{
    certificate::Lifetime,
    metrics::metrics,
    names::{HostNames, TRIES},
};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::body::Bytes;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::{self, Client as HttpClient, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    net::IpAddr,
    pin::Pin,
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::sync::{Notify, watch};
use tower::BoxError;

/// How long a lookup, TCP and TLS may take together. A dead name server costs 5 s before the next
/// one is asked, and TLS takes several round trips. It is below [`REQUEST_DEADLINE`], so that the
/// error says that there is no connection.
const CONNECT: Duration = Duration::from_secs(9);
/// How long TCP to one address may take. While packets are lost, the kernel repeats a SYN 1, 3 and
/// 7 s after the first one. So a long try may be silent for 4 s after the network is back, and a
/// new try sends a SYN at once. TLS has no such limit, because the server has answered by then.
const TCP: Duration = Duration::from_secs(2);
/// A connection on which nothing came for this long is pinged, and closed when there is no answer
/// in time: kube-apiserver is known to be away after 8 s, where the kubelet's 30 s and 15 s take
/// 45.
const PING_AFTER: Duration = Duration::from_secs(5);
const PING_ANSWER: Duration = Duration::from_secs(3);
/// A connection is closed after this many unanswered TCP keepalives.
const KEEPALIVES: u32 = 3;
/// Watches of single objects on the connection of all other requests. kube-apiserver allows 100
/// streams on a connection by default. The other streams are left for requests, so that no request
/// waits until a watch ends.
const WATCHES_ON_MAIN: usize = 40;
/// Watches of single objects on each connection that is made for them.
const WATCHES_PER_CONNECTION: usize = 80;
/// Most connections for watches of single objects. A node with 110 pods needs one to three.
const WATCH_CONNECTIONS: usize = 16;
const STRATEGIC_MERGE: &str = "application/strategic-merge-patch+json";
const JSON: &str = "application/json";

/// What is done to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// GET
    Get,
    /// POST
    Create,
    /// PUT
    Replace,
    /// PATCH, a strategic merge
    Patch,
    /// DELETE
    Delete,
}

impl Verb {
    fn method(self) -> http::Method {
        match self {
            Self::Get => http::Method::GET,
            Self::Create => http::Method::POST,
            Self::Replace => http::Method::PUT,
            Self::Patch => http::Method::PATCH,
            Self::Delete => http::Method::DELETE,
        }
    }
}

/// The body of an answer.
pub(super) type Body = UnsyncBoxBody<Bytes, BoxError>;
type Answering = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>> + Send>>;

/// Sends requests, which name a path, to one server. Copies share its connection.
#[derive(Clone)]
pub struct ApiClient(Arc<dyn Fn(Request<Full<Bytes>>) -> Answering + Send + Sync>);

impl ApiClient {
    pub(super) fn new<F>(answer: impl Fn(Request<Full<Bytes>>) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Response<Body>, BoxError>> + Send + 'static,
    {
        Self(Arc::new(move |request| Box::pin(answer(request))))
    }

    pub(super) async fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Body>, ApiError> {
        Ok((self.0)(request).await?)
    }
}

/// The way to the API server, as one set of credentials opens it. Each client keeps one connection.
#[derive(Clone)]
pub struct Clients {
    /// For the lease alone, so that nothing is ever in its way.
    pub heartbeat: ApiClient,
    /// For all else.
    pub main: ApiClient,
    /// For the watches of single objects for which `main` has no room.
    more: More,
    /// The server's URL, for people.
    pub server: Arc<str>,
    /// When the client certificate expires, where there is one.
    pub certificate_until: Option<jiff::Timestamp>,
}

impl std::fmt::Debug for Clients {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Clients").field("server", &self.server).finish_non_exhaustive()
    }
}

/// Clients that are made when they are used for the first time.
#[derive(Clone)]
struct More {
    make: Arc<dyn Fn() -> ApiClient + Send + Sync>,
    made: Arc<[OnceLock<ApiClient>; WATCH_CONNECTIONS]>,
}

impl More {
    fn new(make: impl Fn() -> ApiClient + Send + Sync + 'static) -> Self {
        Self { make: Arc::new(make), made: Arc::default() }
    }
}

/// What connections are made with.
#[derive(Clone)]
pub struct Connector {
    https: HttpsConnector<HttpConnector<HostNames>>,
    /// `https://10.0.0.1:6443`, without a slash at its end.
    server: Arc<str>,
    /// Of every request.
    headers: HeaderMap,
    certificate_until: Option<jiff::Timestamp>,
    /// Told of each request whose credentials the server rejects (401).
    rejected: Arc<Notify>,
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Connector {
    /// With what was read. May read the system's certificates: it blocks.
    ///
    /// # Errors
    /// When certificates and key do not fit, or the system has no certificates that the server
    /// could be known by.
    pub fn new(
        credentials: Credentials,
        user_agent: &str,
        names: HostNames,
    ) -> Result<Self, TlsError> {
        let mut http = HttpConnector::new_with_resolver(names);
        http.enforce_http(false);
        http.set_connect_timeout(Some(tcp_limit(&credentials.server)));
        http.set_nodelay(true);
        // For a server that speaks no HTTP/2, where there are no pings. It takes as long as these.
        http.set_keepalive(Some(PING_AFTER));
        http.set_keepalive_interval(Some(PING_ANSWER / KEEPALIVES));
        http.set_keepalive_retries(Some(KEEPALIVES));
        let identity = credentials.identity.as_ref();
        let certificate = identity.and_then(|identity| identity.certificates.first());
        let lifetime = certificate.and_then(Lifetime::of_der);
        let until = lifetime.map(|lifetime| jiff::Timestamp::from_second(lifetime.until));
        let tls = tls::client_config(credentials.trust, credentials.identity)?;
        let mut builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_only();
        if let Some(name) = credentials.server_name {
            builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
        }
        let mut headers: HeaderMap = HeaderMap::new();
        for (name, value) in credentials.headers {
            headers.append(name, value);
        }
        if let Ok(value) = HeaderValue::from_str(user_agent) {
            headers.insert(header::USER_AGENT, value);
        }
        Ok(Self {
            https: builder.enable_all_versions().wrap_connector(http),
            server: credentials.server.to_string().trim_end_matches('/').into(),
            headers,
            certificate_until: until.and_then(Result::ok),
            rejected: Arc::default(),
        })
    }

    /// What is told when the server rejects the credentials of a request (401).
    pub(super) fn rejected(&self) -> Arc<Notify> {
        Arc::clone(&self.rejected)
    }
}

impl Clients {
    /// All clients. Nothing is connected before the first request; each request has the
    /// `Authorization` that is published last.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[must_use]
    pub fn new(
        connector: &Connector,
        authorization: &watch::Receiver<Option<HeaderValue>>,
    ) -> Self {
        let (more, authorization_of_more) = (connector.clone(), authorization.clone());
        Self {
            heartbeat: client(connector, authorization.clone()),
            main: client(connector, authorization.clone()),
            more: More::new(move || client(&more, authorization_of_more.clone())),
            server: Arc::clone(&connector.server),
            certificate_until: connector.certificate_until,
        }
    }

    /// The client for a watch of a single object. The watches have numbers from 0.
    pub(super) fn of_watch(&self, number: usize) -> &ApiClient {
        let Some(beyond) = number.checked_sub(WATCHES_ON_MAIN) else { return &self.main };
        // With more watches than that, some wait for others. No other request waits.
        let index = beyond / WATCHES_PER_CONNECTION % WATCH_CONNECTIONS;
        self.more.made.get(index).map_or(&self.main, |one| one.get_or_init(|| (self.more.make)()))
    }
}

/// How long TCP may take over all tries: [`TCP`] for each of them. An IP address is tried once.
fn tcp_limit(server: &Uri) -> Duration {
    let host = server.host().unwrap_or_default().trim_matches(['[', ']']);
    if host.parse::<IpAddr>().is_ok() { TCP } else { TCP * TRIES }
}

/// Connections that are pinged after a silence, and closed when there is no answer in time.
fn builder(ping_after: Duration, ping_answer: Duration) -> legacy::Builder {
    let mut builder = HttpClient::builder(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_keep_alive_interval(ping_after)
        .http2_keep_alive_timeout(ping_answer)
        .http2_keep_alive_while_idle(true);
    builder
}

fn client(connector: &Connector, authorization: watch::Receiver<Option<HeaderValue>>) -> ApiClient {
    let mut timed = TimeoutConnector::new(connector.https.clone());
    timed.set_connect_timeout(Some(CONNECT));
    let client: HttpClient<_, Full<Bytes>> = builder(PING_AFTER, PING_ANSWER).build(timed);
    let (server, headers) = (Arc::clone(&connector.server), connector.headers.clone());
    let host: Arc<str> = server.trim_start_matches("https://").into();
    let rejected = connector.rejected();
    ApiClient::new(move |mut request| {
        let method = request.method().clone();
        request.headers_mut().extend(headers.clone());
        if let Some(value) = &*authorization.borrow() {
            request.headers_mut().insert(header::AUTHORIZATION, value.clone());
        }
        let answering = format!("{server}{}", request.uri()).parse::<Uri>().map(|uri| {
            *request.uri_mut() = uri;
            client.request(request)
        });
        let (host, rejected) = (Arc::clone(&host), Arc::clone(&rejected));
        async move {
            let answer = match answering {
                Ok(answering) => answering.await.map_err(BoxError::from),
                Err(error) => Err(error.into()),
            };
            let status = answer.as_ref().ok().map(Response::status);
            if status == Some(StatusCode::UNAUTHORIZED) {
                rejected.notify_one();
            }
            let code = status.as_ref().map_or("<error>", |status| status.as_str());
            metrics().api_requests.with_label_values(&[code, &*host, method.as_str()]).inc();
            Ok(answer?.map(|body| body.map_err(Into::into).boxed_unsync()))
        }
    })
}

/// One request. `path` begins with `/api` and may have a query.
///
/// # Errors
/// When the API server refuses it, or does not answer within [`REQUEST_DEADLINE`].
///
/// # Cancel safety
/// Dropping it leaves open whether the request was carried out.
pub async fn call<T: DeserializeOwned>(
    client: &ApiClient,
    verb: Verb,
    path: &str,
    body: Option<&(impl Serialize + Sync)>,
) -> Result<T, ApiError> {
    call_within(client, REQUEST_DEADLINE, verb, path, body).await
}

/// As [`call`], with the [`WRITE_DEADLINE`].
///
/// # Errors
/// When the API server refuses it, or does not answer in time.
///
/// # Cancel safety
/// Dropping it leaves open whether the request was carried out.
pub async fn write<T: DeserializeOwned>(
    client: &ApiClient,
    verb: Verb,
    path: &str,
    body: Option<&(impl Serialize + Sync)>,
) -> Result<T, ApiError> {
    call_within(client, WRITE_DEADLINE, verb, path, body).await
}

async fn call_within<T: DeserializeOwned>(
    client: &ApiClient,
    deadline: Duration,
    verb: Verb,
    path: &str,
    body: Option<&(impl Serialize + Sync)>,
) -> Result<T, ApiError> {
    let failed = |error: &dyn std::error::Error| ApiError::Failed(error.to_string());
    let bytes = body.map(serde_json::to_vec).transpose().map_err(|error| failed(&error))?;
    let content = match verb {
        Verb::Patch => STRATEGIC_MERGE,
        Verb::Get | Verb::Create | Verb::Replace | Verb::Delete => JSON,
    };
    let request = Request::builder()
        .method(verb.method())
        .uri(path)
        .header(header::CONTENT_TYPE, HeaderValue::from_static(content))
        .header(header::ACCEPT, HeaderValue::from_static(JSON))
        .body(Full::from(bytes.unwrap_or_default()))
        .map_err(|error| failed(&error))?;
    let asked = async {
        let body = answer::accepted(client.send(request).await?).await?;
        answer::object(&answer::text(body, answer::MAX_OBJECT_BYTES).await?)
    };
    tokio::time::timeout(deadline, asked).await.unwrap_or(Err(ApiError::Late(deadline)))
}

/// A body that is there at once.
#[cfg(test)]
pub(super) fn whole(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).map_err(|never| match never {}).boxed_unsync()
}

#[cfg(test)]
impl Clients {
    /// Clients of a server that is the given function: method, path and body to code and answer.
    pub(super) fn of_server(
        answer: impl Fn(&http::Method, &str, serde_json::Value) -> (u16, serde_json::Value)
        + Send
        + Sync
        + 'static,
    ) -> Self {
        let answer = Arc::new(answer);
        let client = ApiClient::new(move |request| {
            let answer = Arc::clone(&answer);
            async move {
                let (parts, body) = request.into_parts();
                let body = serde_json::from_slice(&body.collect().await?.to_bytes());
                let (code, answer) =
                    answer(&parts.method, parts.uri.path(), body.unwrap_or_default());
                Ok(Response::builder().status(code).body(whole(answer.to_string()))?)
            }
        });
        Self::of_client(&client)
    }

    /// The same client for everything.
    pub(super) fn of_client(client: &ApiClient) -> Self {
        let (heartbeat, main, more) = (client.clone(), client.clone(), client.clone());
        let more = More::new(move || more.clone());
        let server = "https://here".into();
        Self { heartbeat, main, more, server, certificate_until: None }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use hyper::{server::conn::http2, service::service_fn};
    use hyper_util::rt::TokioIo;
    use std::convert::Infallible;
    use tokio::{
        io::{AsyncReadExt as _, copy_bidirectional, duplex},
        net::{TcpListener, TcpStream},
        task::JoinSet,
        time::timeout,
    };

    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn watches_of_objects_are_spread_over_connections() {
        let made = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let unused = || ApiClient::new(|_| std::future::pending());
        let mut clients = Clients::of_client(&unused());
        let count = Arc::clone(&made);
        clients.more = More::new(move || {
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            unused()
        });
        let connections = |watches: usize| {
            for number in 0..watches {
                clients.of_watch(number);
            }
            made.load(std::sync::atomic::Ordering::Relaxed)
        };
        assert_eq!([connections(40), connections(41), connections(120)], [0, 1, 1]);
        assert_eq!([connections(121), connections(100_000)], [2, WATCH_CONNECTIONS]);
    }

    #[test]
    fn a_dead_connection_is_noticed_within_8_s() {
        assert!(!PING_AFTER.is_zero() && !PING_ANSWER.is_zero());
        assert!((PING_AFTER + PING_ANSWER).as_secs() <= 8);
    }

    #[test]
    fn a_try_to_connect_is_short_and_a_lookup_may_be_slow() {
        let limit = |server| tcp_limit(&Uri::from_static(server)).as_secs();
        assert_eq!([limit("https://10.0.0.1:6443"), limit("https://[fd00::1]")], [2, 2]);
        assert_eq!(limit("https://api.example:6443"), 6, "three tries, 2 s each");
        let name_server = Duration::from_secs(5);
        assert!(CONNECT > name_server + TCP && CONNECT < REQUEST_DEADLINE);
    }

    /// Serves one connection until `silent`, and then reads and says nothing until its end.
    async fn serve_until(mut stream: TcpStream, silent: &Notify) {
        let (mut near, far) = duplex(64 << 10);
        let answer = service_fn(async |_| {
            Ok::<_, Infallible>(Response::new(http_body_util::Empty::<&[u8]>::new()))
        });
        let server = http2::Builder::new(TokioExecutor::new());
        let mut served = JoinSet::new();
        served.spawn(async move { server.serve_connection(TokioIo::new(far), answer).await.ok() });
        tokio::select! {
            _ = copy_bidirectional(&mut stream, &mut near) => {}
            () = silent.notified() => {}
        }
        let mut read = vec![0; 1024];
        while stream.read(&mut read).await.is_ok_and(|count| count > 0) {}
    }

    #[tokio::test]
    async fn an_idle_connection_to_a_silent_server_is_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}/", listener.local_addr().unwrap());
        let ping = Duration::from_millis(500);
        let client: HttpClient<_, Full<Bytes>> =
            builder(ping, ping).http2_only(true).build(HttpConnector::new());
        let silent = Notify::new();
        let served = async {
            let (stream, _) = listener.accept().await.unwrap();
            serve_until(stream, &silent).await;
        };
        let asked = async {
            let request = Request::get(uri).body(Full::default()).unwrap();
            let answer = client.request(request).await.unwrap();
            assert!(answer.status().is_success());
            silent.notify_one();
        };
        let closed = timeout(PATIENCE, async { tokio::join!(served, asked) }).await;
        assert!(closed.is_ok(), "the connection is still there");
    }
}

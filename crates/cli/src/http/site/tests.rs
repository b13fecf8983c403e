use super::super::output::Sink;
use super::super::reader::Reader;
use super::super::session::{Next, Session};
use super::*;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Duration;

/// A directory that goes away with the test.
pub struct TempDir(pub PathBuf);

impl TempDir {
    pub fn new(name: &str) -> TempDir {
        let path = std::env::temp_dir().join(format!("corelane-cli-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a temporary directory");
        TempDir(path)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

struct Everything(Vec<u8>);

impl Sink for Everything {
    fn write(&mut self, data: &[u8], _more: bool) -> io::Result<usize> {
        // Never all at once, so that segments resume in the middle.
        let n = data.len().min(50_000);
        self.0.extend_from_slice(&data[..n]);
        Ok(n)
    }
}

struct Answered {
    status: u16,
    head: String,
    body: Vec<u8>,
    next: Next,
}

impl Answered {
    fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

struct Rig {
    dir: TempDir,
    site: Site,
    now: SystemTime,
}

fn big() -> Vec<u8> {
    (0..1_000_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

impl Rig {
    fn new(name: &str) -> Rig {
        let dir = TempDir::new(name);
        let root = dir.0.join("root");
        fs::create_dir_all(root.join("sub/empty")).expect("directories");
        fs::write(root.join("index.html"), "<p>home").expect("a file");
        fs::write(root.join("sub/index.html"), "<p>sub").expect("a file");
        fs::write(root.join("a b.txt"), "0123456789").expect("a file");
        fs::write(root.join("nothing"), "").expect("a file");
        fs::write(root.join("big.bin"), big()).expect("a file");
        fs::write(dir.0.join("secret"), "secret").expect("a file");
        let files = Files::open(&root).expect("the root opens");
        let now = SystemTime::now() + Duration::from_secs(5);
        Rig { dir, site: Site::new(files, Show::default(), now), now }
    }

    fn root(&self) -> PathBuf {
        self.dir.0.join("root")
    }

    fn raw(&mut self, request: &str) -> Answered {
        let (mut session, mut sink, mut scratch) = (Session::default(), Everything(Vec::new()), vec![0; 10_000]);
        let next = session
            .advance(request.as_bytes(), &mut self.site, &mut sink, &mut scratch, &mut Default::default())
            .expect("files are whole");
        let (mut reader, mut body) = (Reader::default(), Vec::new());
        let bodiless = request.starts_with("HEAD");
        let used = reader.feed(&sink.0, bodiless, &mut |bytes| body.extend_from_slice(bytes)).expect("well-formed");
        assert!(reader.is_done(), "a whole answer to {request:?}");
        assert_eq!(used, sink.0.len(), "one answer to {request:?}");
        let end = super::super::head::end_of_head(&sink.0, 0).expect("a head");
        let head = String::from_utf8(sink.0[..end].to_vec()).expect("text");
        Answered { status: reader.status, head, body, next }
    }

    fn get(&mut self, target: &str, fields: &str) -> Answered {
        self.raw(&format!("GET {target} HTTP/1.1\r\nHost: a\r\n{fields}\r\n"))
    }

    fn later(&mut self) {
        self.now += Duration::from_secs(1);
        self.site.set_time(self.now);
    }
}

#[test]
fn files_come_whole_with_their_type() {
    let mut rig = Rig::new("whole");
    let home = rig.get("/", "");
    assert_eq!((home.status, home.body.as_slice()), (200, b"<p>home".as_slice()));
    assert_eq!(home.field("Content-Type"), Some("text/html; charset=utf-8"));
    assert_eq!(home.next, Next::Read);
    assert!(home.field("Date").is_some() && home.field("Last-Modified").is_some() && home.field("ETag").is_some());
    assert_eq!(rig.get("/a%20b.txt?x=1", "").body, b"0123456789");
    assert_eq!(rig.get("http://a/sub/", "").body, b"<p>sub");
    assert_eq!(rig.get("/big.bin", "").body, big());
    let nothing = rig.get("/nothing", "");
    assert_eq!((nothing.status, nothing.body.len()), (200, 0));
    let head = rig.raw("HEAD /big.bin HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!((head.status, head.field("Content-Length"), head.body.len()), (200, Some("1000000"), 0));
}

#[test]
fn directories_redirect_and_are_not_listed() {
    let mut rig = Rig::new("directories");
    let sub = rig.get("/sub?q=1", "");
    assert_eq!((sub.status, sub.field("Location")), (301, Some("/sub/?q=1")));
    assert_eq!(rig.get("//sub", "").field("Location"), Some("/sub/"));
    assert_eq!(rig.get("/sub/empty/", "").status, 403);
    assert_eq!(rig.get("/sub/none/", "").status, 404);
    assert_eq!(rig.get("/nothing/", "").status, 404);
    assert_eq!(rig.get("/none", "").status, 404);
}

#[test]
fn names_that_begin_with_a_dot_are_not_shown() {
    let mut rig = Rig::new("dotfiles");
    let root = rig.root();
    for directory in [".git", ".well-known", "sub/.svn"] {
        fs::create_dir_all(root.join(directory)).expect("a directory");
    }
    for file in [".env", ".git/config", ".well-known/security.txt", "sub/.svn/entries"] {
        fs::write(root.join(file), "x").expect("a file");
    }
    let hidden = ["/.env", "/%2eenv", "/.git", "/.git/", "/.git/config", "/sub/.svn/entries", "/.well-known/../.env"];
    for target in hidden {
        let status = rig.get(target, "").status;
        assert!(matches!(status, 404 | 400), "{target}: {status}");
    }
    assert_eq!(rig.get("/.well-known/security.txt", "").status, 200);
    rig.site.show.dotfiles = true;
    assert_eq!((rig.get("/.env", "").status, rig.get("/.git/config", "").status), (200, 200));
}

#[test]
fn directories_are_listed_where_that_is_asked_for() {
    let mut rig = Rig::new("lists");
    rig.site.show.lists = true;
    assert_eq!(rig.get("/", "").body, b"<p>home", "an index goes before a list");
    fs::create_dir_all(rig.root().join("sub/empty/deeper")).expect("a directory");
    for file in ["one & two", ".env", "b"] {
        fs::write(rig.root().join("sub/empty").join(file), "x").expect("a file");
    }
    let list = rig.get("/sub/empty/", "");
    let kind = list.field("Content-Type").map(str::to_owned);
    let text = String::from_utf8(list.body).expect("text");
    assert_eq!((list.status, kind.as_deref()), (200, Some("text/html; charset=utf-8")));
    let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what}: {text}"));
    assert!(at("./deeper/\"") < at("./b\"") && at("./b\"") < at("./one%20%26%20two\">one &amp; two<"), "{text}");
    assert!(!text.contains(".env"), "{text}");
    assert_eq!(rig.raw("HEAD /sub/empty/ HTTP/1.1\r\nHost: a\r\n\r\n").body, b"");
    assert_eq!(rig.get("/sub/none/", "").status, 404);
}

#[test]
fn nothing_outside_the_root_is_reached() {
    let mut rig = Rig::new("outside");
    symlink("../secret", rig.root().join("relative")).expect("a link");
    symlink(rig.dir.0.join("secret"), rig.root().join("absolute")).expect("a link");
    symlink("..", rig.root().join("up")).expect("a link");
    symlink("a b.txt", rig.root().join("inside")).expect("a link");
    symlink("loop", rig.root().join("loop")).expect("a link");
    for target in ["/relative", "/absolute", "/up/secret", "/up/", "/loop"] {
        assert_eq!(rig.get(target, "").status, 403, "{target}");
    }
    assert_eq!(rig.get("/inside", "").body, b"0123456789");
    for target in ["/../secret", "/sub/../../secret", "/%2e%2e/secret", "/..%2fsecret", "/sub%2findex.html", "/a%00b"] {
        assert_eq!(rig.get(target, "").status, 400, "{target}");
    }
    let fifo = rig.root().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a fifo");
    assert_eq!(rig.get("/fifo", "").status, 403);
}

#[test]
fn methods_hosts_and_versions() {
    let mut rig = Rig::new("methods");
    let post = rig.raw("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    assert_eq!((post.status, post.field("Allow"), post.next), (405, Some("GET, HEAD"), Next::Read));
    for (version, fields, status) in
        [("1.1", "", 400), ("1.1", "Host: a\r\nTransfer-Encoding: x\r\n", 501), ("3.0", "", 505)]
    {
        let answer = rig.raw(&format!("HEAD / HTTP/{version}\r\n{fields}\r\n"));
        assert_eq!(
            (answer.status, answer.body.as_slice()),
            (status, b"".as_slice()),
            "HEAD in {version} with {fields:?}"
        );
    }
    assert_eq!(rig.raw("GET / HTTP/1.1\r\n\r\n").status, 400);
    assert_eq!(rig.raw("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n").status, 405);
    let old = rig.raw("GET / HTTP/1.0\r\n\r\n");
    assert_eq!((old.status, old.field("Connection"), old.next), (200, Some("close"), Next::Close));
    let kept = rig.raw("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    assert_eq!((kept.field("Connection"), kept.next), (Some("keep-alive"), Next::Read));
}

#[test]
fn conditions_are_met() {
    let mut rig = Rig::new("conditions");
    let first = rig.get("/a%20b.txt", "");
    let etag = first.field("ETag").expect("a tag").to_owned();
    let modified = first.field("Last-Modified").expect("a date").to_owned();
    for fields in [format!("If-None-Match: {etag}\r\n"), format!("If-Modified-Since: {modified}\r\n")] {
        let answer = rig.get("/a%20b.txt", &fields);
        assert_eq!((answer.status, answer.body.len(), answer.field("ETag")), (304, 0, Some(etag.as_str())));
    }
    assert_eq!(rig.get("/a%20b.txt", "If-Match: \"x\"\r\n").status, 412);
    let part = rig.get("/a%20b.txt", &format!("Range: bytes=2-4\r\nIf-Range: {etag}\r\n"));
    assert_eq!((part.status, part.body.as_slice()), (206, b"234".as_slice()));
    let whole = rig.get("/a%20b.txt", "Range: bytes=2-4\r\nIf-Range: \"old\"\r\n");
    assert_eq!((whole.status, whole.body.len()), (200, 10));
}

#[test]
fn ranges_give_their_bytes() {
    let mut rig = Rig::new("ranges");
    let want = big();
    let part = rig.get("/big.bin", "Range: bytes=123456-654321\r\n");
    assert_eq!((part.status, part.field("Content-Range")), (206, Some("bytes 123456-654321/1000000")));
    assert!(part.body == want[123_456..=654_321]);
    assert!(rig.get("/big.bin", "Range: bytes=-10\r\n").body == want[999_990..]);
    let none = rig.get("/a%20b.txt", "Range: bytes=10-\r\n");
    assert_eq!((none.status, none.field("Content-Range")), (416, Some("bytes */10")));
    assert_eq!(rig.raw("HEAD /big.bin HTTP/1.1\r\nHost: a\r\nRange: bytes=0-1\r\n\r\n").status, 200);
    let parts = rig.get("/a%20b.txt", "Range: bytes=0-1,8-\r\n");
    let kind = parts.field("Content-Type").expect("a type");
    let boundary = kind.strip_prefix("multipart/byteranges; boundary=").expect("parts");
    let text = String::from_utf8(parts.body.clone()).expect("text");
    let pieces: Vec<&str> = text.split(&format!("\r\n--{boundary}")).collect();
    assert_eq!(pieces.len(), 4);
    assert!(pieces[1].contains("Content-Range: bytes 0-1/10") && pieces[1].ends_with("\r\n\r\n01"));
    assert!(pieces[2].contains("Content-Range: bytes 8-9/10") && pieces[2].ends_with("\r\n\r\n89"));
    assert_eq!(pieces[3], "--\r\n");
}

#[test]
fn changed_files_are_noticed_within_a_second() {
    let mut rig = Rig::new("changed");
    assert_eq!(rig.get("/a%20b.txt", "").body, b"0123456789");
    fs::write(rig.root().join("a b.txt"), "new").expect("a file");
    rig.later();
    assert_eq!(rig.get("/a%20b.txt", "").body, b"new");
    fs::remove_file(rig.root().join("a b.txt")).expect("it was there");
    rig.later();
    assert_eq!(rig.get("/a%20b.txt", "").status, 404);
}

#[path = "model.rs"]
mod model;

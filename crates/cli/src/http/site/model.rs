//! A site against a model of its tree: random files, directories and links, inside and out, written, renamed and removed while they
//! are asked for, a root that is swapped, and time that passes or does not.

use super::*;
use proptest::prelude::*;
use proptest::sample::select;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Clone)]
enum Node {
    File(Vec<u8>),
    Directory(Names),
    Link(String),
}

type Names = BTreeMap<&'static str, Node>;

/// What the kernel finds where it may not leave the root.
enum Found<'a> {
    File(&'a [u8]),
    Directory(&'a Names),
    Absent,
    Outside,
}

/// Links that the kernel follows in one walk.
const MAX_LINKS: usize = 40;
const NAMES: [&str; 6] = ["a", "b", "d", "index.html", ".e", ".well-known"];
/// Where links lead; `@` is the absolute path of the directory in which the roots and the secret are.
const TARGETS: [&str; 12] =
    ["a", "b", "d/a", "../a", "..", ".", "../secret", "../../secret", "@/secret", "@/v0/a", "d/../a", ".e"];
/// Longer than what is kept in memory.
const LONG: usize = 256 * 1024 + 1;

fn find<'a>(root: &'a Names, path: &str) -> Found<'a> {
    let mut todo: Vec<String> = path.rsplit('/').map(str::to_owned).collect();
    // Where the walk is, as names of directories from the root.
    let mut at: Vec<&'a Names> = vec![root];
    let mut file = None;
    let mut links = 0;
    while let Some(name) = todo.pop() {
        let Some(names) = at.last().filter(|_| file.is_none()) else { return Found::Absent };
        match name.as_str() {
            "" | "." => {}
            ".." if at.len() == 1 => return Found::Outside,
            ".." => drop(at.pop()),
            name => match names.get(name) {
                None => return Found::Absent,
                Some(Node::Directory(names)) => at.push(names),
                Some(Node::File(bytes)) => file = Some(bytes),
                Some(Node::Link(target)) => {
                    links += 1;
                    if links > MAX_LINKS || target.starts_with('/') {
                        return Found::Outside;
                    }
                    todo.extend(target.rsplit('/').map(str::to_owned));
                }
            },
        }
    }
    match (file, at.last()) {
        (Some(bytes), _) => Found::File(bytes),
        (None, Some(names)) => Found::Directory(names),
        (None, None) => Found::Absent,
    }
}

/// An answer: the status, and the content where it is a file's, or the names that a list shows.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Said {
    File(Vec<u8>),
    List(BTreeSet<String>),
    To(String),
    Status(u16),
}

/// What must be answered for the decoded path, asked for as a directory or not.
fn rules(root: &Names, show: Show, path: &str, directory: bool) -> Said {
    let mut names = path.split('/').filter(|name| !name.is_empty()).peekable();
    names.next_if_eq(&".well-known");
    if !show.dotfiles && names.any(|name| name.starts_with('.')) {
        return Said::Status(404);
    }
    if !directory {
        return match find(root, path) {
            Found::File(bytes) => Said::File(bytes.to_vec()),
            Found::Directory(_) => Said::To(format!("/{path}/")),
            Found::Absent => Said::Status(404),
            Found::Outside => Said::Status(403),
        };
    }
    match (find(root, &format!("{path}/index.html")), find(root, path)) {
        (Found::File(bytes), _) => Said::File(bytes.to_vec()),
        (Found::Directory(_) | Found::Outside, _) => Said::Status(403),
        (Found::Absent, Found::Directory(names)) if show.lists => {
            let seen =
                names.iter().filter(|(name, _)| show.dotfiles || !name.starts_with('.') || **name == ".well-known");
            let slash = |node: &Node| if matches!(node, Node::Directory(_)) { "/" } else { "" };
            Said::List(seen.map(|(name, node)| format!("{name}{}", slash(node))).collect())
        }
        (Found::Absent, Found::Directory(_)) => Said::Status(403),
        (Found::Absent, _) => Said::Status(404),
    }
}

/// What a list shows, by its links.
fn listed(page: &[u8]) -> BTreeSet<String> {
    let page = String::from_utf8_lossy(page);
    page.split("<a href=\"./").skip(1).filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())).collect()
}

/// What happens.
#[derive(Clone, Debug)]
enum Deed {
    /// A file with new content, in place or under another name that is then given this one.
    Write {
        path: Vec<usize>,
        length: usize,
        in_place: bool,
    },
    Link {
        path: Vec<usize>,
        target: usize,
    },
    Directory {
        path: Vec<usize>,
    },
    Rename {
        from: Vec<usize>,
        to: Vec<usize>,
    },
    Remove {
        path: Vec<usize>,
    },
    /// The root's path leads to the other directory; the server hears of it now, later or never.
    Swap,
    Reload {
        swapped: bool,
    },
    /// The next second.
    Later,
    Ask {
        path: Vec<usize>,
        directory: bool,
        spelling: u8,
    },
}

fn path() -> impl Strategy<Value = Vec<usize>> {
    // Few names, so that what was made is met again.
    let any = prop::collection::vec(select(&[0, 0, 1, 2, 2, 3, 4, 5][..]), 1..4);
    prop_oneof![2 => Just(vec![0]), 3 => any]
}

fn deed() -> impl Strategy<Value = Deed> {
    let length = select(&[5usize, 5, 5, 5, 5, 5, 5, 5, 7, 0, LONG][..]);
    prop_oneof![
        6 => (path(), length, any::<bool>()).prop_map(|(path, length, in_place)| Deed::Write { path, length, in_place }),
        3 => (path(), 0..TARGETS.len()).prop_map(|(path, target)| Deed::Link { path, target }),
        1 => path().prop_map(|path| Deed::Directory { path }),
        1 => (path(), path()).prop_map(|(from, to)| Deed::Rename { from, to }),
        1 => path().prop_map(|path| Deed::Remove { path }),
        1 => Just(Deed::Swap),
        2 => any::<bool>().prop_map(|swapped| Deed::Reload { swapped }),
        3 => Just(Deed::Later),
        10 => (path(), any::<bool>(), any::<u8>())
            .prop_map(|(path, directory, spelling)| Deed::Ask { path, directory, spelling }),
    ]
}

struct Play {
    rig: Rig,
    show: Show,
    /// What the two directories hold that may be the root, which of them the root's path leads to, and which was opened.
    roots: [Names; 2],
    leads: usize,
    opened: usize,
    /// What the root held since this second began: what was looked at in it is believed for the rest of it.
    seen: Vec<Names>,
    written: usize,
}

impl Play {
    fn new(show: Show) -> Play {
        static PLAYS: AtomicUsize = AtomicUsize::new(0);
        let dir = TempDir::new(&format!("model-{}", PLAYS.fetch_add(1, Ordering::Relaxed)));
        for (n, bytes) in ["first", "other"].iter().enumerate() {
            fs::create_dir(dir.0.join(format!("v{n}"))).expect("a directory");
            fs::write(dir.0.join(format!("v{n}/a")), bytes).expect("a file");
        }
        fs::write(dir.0.join("secret"), "secret").expect("a file");
        symlink("v0", dir.0.join("cur")).expect("a link");
        let now = SystemTime::now() + Duration::from_secs(5);
        let site = Site::new(Files::open(&dir.0.join("cur")).expect("the root opens"), show, now);
        let root = |bytes: &[u8]| Names::from([("a", Node::File(bytes.to_vec()))]);
        let roots = [root(b"first"), root(b"other")];
        let seen = vec![roots[0].clone()];
        Play { rig: Rig { dir, site, now }, show, roots, leads: 0, opened: 0, seen, written: 0 }
    }

    fn place(&self, path: &[usize]) -> PathBuf {
        path.iter().fold(self.rig.dir.0.join(format!("v{}", self.opened)), |at, name| at.join(NAMES[*name]))
    }

    /// The directory that a path's last name is in.
    fn parent(&mut self, path: &[usize]) -> Option<(&mut Names, &'static str)> {
        let (last, above) = path.split_last()?;
        let mut at = &mut self.roots[self.opened];
        for name in above {
            let Some(Node::Directory(names)) = at.get_mut(NAMES[*name]) else { return None };
            at = names;
        }
        Some((at, NAMES[*last]))
    }

    /// Makes the directories above a path, there and in the model; false where something else is in the way.
    fn reach(&mut self, path: &[usize]) -> bool {
        for to in 1..path.len() {
            match self.there(&path[..to]) {
                Some(Node::Directory(_)) => {}
                Some(_) => return false,
                None => {
                    fs::create_dir(self.place(&path[..to])).expect("a directory");
                    self.put(&path[..to], Node::Directory(Names::new()));
                }
            }
        }
        true
    }

    fn put(&mut self, path: &[usize], node: Node) {
        if let Some((names, name)) = self.parent(path) {
            names.insert(name, node);
        }
    }

    fn take(&mut self, path: &[usize]) -> Option<Node> {
        let (names, name) = self.parent(path)?;
        names.remove(name)
    }

    fn there(&mut self, path: &[usize]) -> Option<&Node> {
        let (names, name) = self.parent(path)?;
        names.get(name)
    }

    fn clear(&mut self, path: &[usize]) {
        let place = self.place(path);
        match self.take(path) {
            Some(Node::Directory(_)) => fs::remove_dir_all(place).expect("it was there"),
            Some(_) => fs::remove_file(place).expect("it was there"),
            None => {}
        }
    }

    fn write(&mut self, path: &[usize], length: usize, in_place: bool) {
        self.written += 1;
        let bytes: Vec<u8> = format!("{:05};", self.written % 100_000).bytes().cycle().take(length).collect();
        let place = self.place(path);
        // What is sent while it is read is as long as it was: such a file gets its name when it is whole.
        if in_place && length < LONG && matches!(self.there(path), None | Some(Node::File(..))) {
            if self.there(path).is_some_and(|node| matches!(node, Node::File(old) if old.len() >= LONG)) {
                fs::remove_file(&place).expect("it was there");
            }
            fs::write(place, &bytes).expect("a file");
        } else {
            if matches!(self.there(path), Some(Node::Directory(_))) {
                self.clear(path);
            }
            let whole = self.rig.dir.0.join("whole");
            fs::write(&whole, &bytes).expect("a file");
            fs::rename(whole, place).expect("it gets its name");
        }
        self.put(path, Node::File(bytes));
    }

    fn link(&mut self, path: &[usize], target: &str) {
        self.clear(path);
        let target = target.replace('@', &self.rig.dir.0.to_string_lossy());
        symlink(&target, self.place(path)).expect("a link");
        self.put(path, Node::Link(target));
    }

    fn rename(&mut self, from: &[usize], to: &[usize]) {
        if from.starts_with(to) || to.starts_with(from) || self.there(from).is_none() {
            return;
        }
        self.clear(to);
        let (old, new) = (self.place(from), self.place(to));
        if let Some(node) = self.take(from) {
            fs::rename(old, new).expect("it gets another name");
            self.put(to, node);
        }
    }

    fn swap(&mut self) {
        self.leads ^= 1;
        let link = self.rig.dir.0.join("next");
        symlink(format!("v{}", self.leads), &link).expect("a link");
        fs::rename(link, self.rig.dir.0.join("cur")).expect("it takes the old one's place");
    }

    fn ask(&mut self, path: &[usize], directory: bool, spelling: u8) {
        let path = path.iter().map(|name| NAMES[*name]).collect::<Vec<_>>().join("/");
        let slash = if directory { "/" } else { "" };
        let target = match spelling % 8 {
            0 => format!("//{path}{slash}"),
            1 => format!("/./{path}{slash}?a=/b"),
            2 => format!("/%{:02x}{}{slash}", path.as_bytes()[0], &path[1..]),
            3 => format!("http://a/{path}{slash}"),
            4 => format!("/a/../{path}{slash}"),
            _ => format!("/{path}{slash}"),
        };
        let answered = self.rig.get(&target, "");
        let said = match answered.status {
            200 if answered.field("ETag").is_none() => Said::List(listed(&answered.body)),
            200 => Said::File(answered.body),
            301 => Said::To(answered.field("Location").expect("where to").split('?').next().unwrap_or("").to_owned()),
            status => Said::Status(status),
        };
        // A climb is refused, wherever it would lead.
        let right = match spelling % 8 {
            4 => said == Said::Status(400),
            _ => self.seen.iter().any(|root| rules(root, self.show, &path, directory) == said),
        };
        let short = |said: &Said| format!("{said:?}").chars().take(120).collect::<String>();
        let wanted: Vec<String> =
            self.seen.iter().map(|root| short(&rules(root, self.show, &path, directory))).collect();
        assert!(right, "{target} is answered {}, where one of {wanted:?} is right", short(&said));
    }

    fn play(&mut self, deed: Deed) {
        match deed {
            Deed::Write { path, length, in_place } if self.reach(&path) => self.write(&path, length, in_place),
            Deed::Link { path, target } if self.reach(&path) => self.link(&path, TARGETS[target]),
            Deed::Directory { path } if self.reach(&path) && self.there(&path).is_none() => {
                fs::create_dir(self.place(&path)).expect("a directory");
                self.put(&path, Node::Directory(Names::new()));
            }
            Deed::Rename { from, to } if self.reach(&from) && self.reach(&to) => self.rename(&from, &to),
            Deed::Remove { path } if self.reach(&path) => self.clear(&path),
            Deed::Swap => self.swap(),
            Deed::Reload { swapped } => {
                if swapped {
                    self.swap();
                }
                self.rig.site.reload();
                self.opened = self.leads;
                self.seen.clear();
            }
            Deed::Later => {
                self.rig.later();
                self.seen.clear();
            }
            Deed::Ask { path, directory, spelling } => return self.ask(&path, directory, spelling),
            _ => {}
        }
        self.seen.push(self.roots[self.opened].clone());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_site_answers_what_is_there(dotfiles: bool, lists: bool, deeds in prop::collection::vec(deed(), 20..160)) {
        let mut play = Play::new(Show { dotfiles, lists });
        for deed in deeds {
            play.play(deed);
        }
    }
}

/// The model by itself.
#[test]
fn links_are_walked_as_the_kernel_does() {
    let link = |target: &str| Node::Link(target.to_owned());
    let inner = Names::from([("a", Node::File(b"x".into())), ("b", link("../a")), ("d", link("../.."))]);
    let root = Names::from([("a", link("d/a")), ("b", link("b")), ("d", Node::Directory(inner))]);
    assert!(matches!(find(&root, "d/b"), Found::File(b"x")));
    assert!(matches!(find(&root, "d/d"), Found::Outside) && matches!(find(&root, "b"), Found::Outside));
    assert!(matches!(find(&root, "d/a/b"), Found::Absent) && matches!(find(&root, "d/.."), Found::Directory(_)));
}

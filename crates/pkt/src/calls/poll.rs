//! poll and epoll.

use socket::{Interest, Ready, bits};

use super::args::{Args, field, field_int, fields};
use super::{Fd, Kind, Progress, Try};
use crate::run::{Runner, Stop};
use crate::symbols;

const POLLRDNORM: u32 = 0x40;
const POLLWRNORM: u32 = 0x100;

impl Runner<'_> {
    pub(super) fn sys_poll(&mut self, args: &Args, progress: &mut Progress) -> Result<Try, Stop> {
        args.exactly(3)?;
        let list = args.list(0)?;
        if args.int(1)? != list.len() as i64 {
            return Err(Stop::fail(format!("{} descriptors", args.int(1)?), list.len().to_string()));
        }
        self.until(progress, args.int(2)?);
        let (mut ready, mut expected, mut got) = (0, Vec::new(), Vec::new());
        for one in list {
            let one = fields(one)?;
            let (_, fd) = self.fd_by_number(field_int(one, "fd")?)?;
            let asked = field_int(one, "events")? as u32;
            let mut holds = self.machine.sockets().readiness(fd.id).unwrap_or(0x20);
            for (bit, normal) in [(bits::IN, POLLRDNORM), (bits::OUT, POLLWRNORM)] {
                if holds & bit != 0 {
                    holds |= normal;
                }
            }
            let holds = holds & (asked | bits::ERR | bits::HUP | 0x20);
            ready += (holds != 0) as i64;
            let wanted = if field(one, "revents").is_some() { field_int(one, "revents")? as u32 } else { 0 };
            expected.push(symbols::events(wanted));
            got.push(symbols::events(holds));
        }
        if ready == 0 && !self.timed_out(progress) {
            return Ok(Try::Wait);
        }
        Ok(Try::with(ready, "revents", expected.join(" "), got.join(" ")))
    }

    pub(super) fn sys_epoll_create(&mut self, args: &Args) -> Result<Try, Stop> {
        args.exactly(1)?;
        match self.machine.sockets().epoll_create() {
            Ok(id) => {
                let fd = Fd { id, nonblocking: false, kind: Kind::Epoll, written: 0, read: 0 };
                self.name_fd(args.call, fd)?;
                Ok(Ok(0).into())
            }
            Err(e) => Ok(Err::<i64, _>(e).into()),
        }
    }

    pub(super) fn sys_epoll_ctl(&mut self, args: &Args) -> Result<Try, Stop> {
        args.exactly(4)?;
        let ((_, epoll), (_, fd)) = (self.fd(args, 0)?, self.fd(args, 2)?);
        let event = args.fields(3)?;
        let interest = Interest::from_epoll(field_int(event, "events")? as u32, data(event)?.1);
        let sockets = self.machine.sockets();
        Ok(match args.int(1)? {
            1 => sockets.epoll_add(epoll.id, fd.id, interest),
            2 => sockets.epoll_delete(epoll.id, fd.id),
            3 => sockets.epoll_modify(epoll.id, fd.id, interest),
            other => return Err(Stop::fail("EPOLL_CTL_ADD, _MOD or _DEL", other.to_string())),
        }
        .into())
    }

    /// The script says what the first event is; `{events=0, ptr=0}` when there is none.
    pub(super) fn sys_epoll_wait(&mut self, args: &Args, progress: &mut Progress) -> Result<Try, Stop> {
        args.exactly(4)?;
        let (_, epoll) = self.fd(args, 0)?;
        let event = args.fields(1)?;
        self.until(progress, args.int(3)?);
        let mut out = vec![Ready { events: 0, data: 0 }; args.int(2)?.clamp(0, 4096) as usize];
        let n = match self.machine.sockets().epoll_collect(epoll.id, &mut out) {
            Ok(n) => n,
            Err(e) => return Ok(Err::<i64, _>(e).into()),
        };
        if n == 0 && !self.timed_out(progress) {
            return Ok(Try::Wait);
        }
        let (name, wanted) = data(event)?;
        let expected = (field_int(event, "events")? as u32, wanted);
        let got = out.first().map_or((0, 0), |r| (r.events, r.data));
        let show = |(events, data): (u32, u64)| format!("{{events={}, {name}={data}}}", symbols::events(events));
        Ok(Try::with(n as i64, "the event", show(expected), show(got)))
    }
}

/// What comes back with an event: the member of the union, and its value.
fn data(event: &[crate::ast::Field]) -> Result<(&str, u64), Stop> {
    let member = event.iter().find(|f| matches!(f.name.as_str(), "fd" | "ptr" | "u32" | "u64"));
    let member = member.ok_or_else(|| Stop::fail("a field `fd`, `ptr`, `u32` or `u64`", "none"))?;
    Ok((&member.name, super::args::integer(&member.value)? as u64))
}

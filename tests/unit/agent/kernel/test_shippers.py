"""The kernel line as log shippers, stores, terminals and packers hand it on, and what they hand on of a process."""

import bz2
import io
import json
import lzma

import pytest
from nvcre_agent.kernel.saved import SavedLog
from nvcre_agent.kernel_log_reading import Reading, Told

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x, GPU has fallen off the bus."
LINE = f"[  200.011791] {XID}"
SYSLOG = f"Feb  1 00:00:00 n101 kernel: {LINE}"
AT = "2026-05-05T05:05:05.123456789Z"


def js(**fields: object) -> str:
    return json.dumps(fields) + "\n"


JOURNAL = js(MESSAGE=XID, _TRANSPORT="kernel", __REALTIME_TIMESTAMP="1777957505123456")

HANDED_ON = {
    "journalctl -o json-sse": f"data: {JOURNAL}\n",
    "journalctl -o json-seq": f"\x1e{JOURNAL}",
    "journalctl -o export that begins with another field": f"_TRANSPORT=kernel\nPRIORITY=3\nMESSAGE={XID}\n\n",
    "journalctl -o export with CRLF": f"__CURSOR=s=1\r\nMESSAGE={XID}\r\n_TRANSPORT=kernel\r\n\r\n",
    "journalctl -o short-delta": f"[  200.011791 <    0.000012 >] n101 kernel: {XID}\n",
    "CRI: docker's JSON": f"{AT} stdout F {js(log=LINE, stream='stdout')}",
    "CRI: the journal's JSON": f"{AT} stdout F {JOURNAL}",
    "CRI: a line in two parts": f"{AT} stdout P {LINE[:50]}\n{AT} stdout F {LINE[50:]}\n",
    "CRI: the end of the line is missing": f"{AT} stdout P {LINE}\n",
    "docker: the journal's JSON": js(log=JOURNAL, stream="stdout", time=AT),
    "fluent-bit, kmsg input": js(date=1777957505.1, priority=3, sequence=339, sec=200, usec=11791, msg=XID),
    "fluent-bit, standard output": f'[0] kmsg.0: [[1777957505.1, {{}}], {{"priority"=>3, "sequence"=>339, "sec"=>200, '
    f'"usec"=>11791, "msg"=>"{XID}"}}]\n',
    "filebeat": js(**{"@timestamp": AT, "message": SYSLOG, "log": {"file": {"path": "/var/log/kern.log"}}}),
    "journalbeat": js(message=XID, systemd={"transport": "kernel"}, log={"syslog": {"facility": {"code": 0}}}),
    "vector": js(appname="kernel", facility="kern", hostname="n1", message=XID, severity="err", timestamp=AT),
    "rsyslog's JSON template": js(facility="kern", syslogtag="kernel:", msg=f" {LINE}", timestamp=AT),
    "GELF": js(version="1.1", host="n", short_message=XID, level=3, _facility="kern", timestamp=1777957505.1),
    "Elasticsearch": js(_index="x", _source={"message": LINE, "@timestamp": AT}),
    "Splunk": js(preview=False, result={"_raw": SYSLOG, "_time": AT}),
    "Loki, logcli": f'2026-05-05T05:05:05Z {{host="n1", job="kernlog"}} {LINE}\n',
    "Loki, logcli -o jsonl": js(labels={"host": "n1"}, line=LINE, timestamp=AT),
    "Loki's API": js(status="success", data={"result": [{"stream": {}, "values": [["1777957505123456789", LINE]]}]}),
    "CloudWatch": js(timestamp=1777957505123, message=LINE, ingestionTime=1777957506000),
    "CloudWatch, several": js(events=[{"message": "x"}, {"timestamp": 1777957505123, "message": LINE}]),
    "CloudWatch, as aws prints it": json.dumps({"events": [{"message": "x"}, {"message": LINE}]}, indent=4),
    "Google Cloud": js(jsonPayload={"MESSAGE": XID, "_TRANSPORT": "kernel"}, timestamp=AT),
    "Google Cloud, text": js(textPayload=LINE, timestamp=AT),
    "EC2 console output": js(InstanceId="i-1", Output=f"[    0.000000] Linux version 6.8\r\n{LINE}\r\n"),
    "EC2 console output, as aws prints it": json.dumps({"Output": f"[    0.0] Linux\r\n{LINE}\r\n"}, indent=4),
    "logfmt": f'time=2026-05-05T05:05:05Z level=error facility=kern msg="{XID}"\n',
    "CSV of a store": f'"May 5, 2026 @ 05:05:05.123","n101","{LINE}"\n',
    "CSV with the program": f'2026-05-05T05:05:05Z,n101,kernel,"{XID}"\n',
    "syslog with tabs": f"Feb  1 00:00:00\tn101\tkernel:\t{LINE}\n",
    "tab-separated, with level": f"2026-05-05T05:05:05Z\tn101\tkernel\terr\t{XID}\n",
    "Grafana's download": f"2026-05-05 05:05:05.123\t{LINE}\n",
    "netconsole, extended": f"3,339,200011791,-;{XID}\n",
    "netconsole with the release": f"6.8.0-1015-nvidia,3,339,200011791,-;{XID}\n",
    "netconsole through rsyslog": f"2026-05-05T05:05:05Z 10.0.0.7 3,339,200011791,-;{XID}\n",
    "RFC 5424 with its length": f"{len(XID) + 60} <3>1 {AT} n101 kernel - - - {XID}\n",
    "a priority and the tag": f"<3>kernel: {XID}\n",
    "logread": f"Tue May  5 05:05:05 2026 kern.err kernel: {LINE}\n",
    "SUSE": f"2026-05-05T05:05:05.123456+02:00 n101 kernel: [  200.011791][T4242] {XID}\n",
    "Talos": f"10.5.0.2: kern:     err: [{AT}]: {XID}\n",
    "docker compose": f"dmesg-1  | {LINE}\n",
    "salt": f"n101:\n    [  199.0] x\n    {LINE}\n",
    "indented": f"\t[  199.0] x\n\t{LINE}\n",
    "a console server": f"[Tue May  5 05:05:05 2026]{LINE}\n",
    "a console server, ISO": f"[2026-05-05T05:05:05.123Z] {LINE}\n",
    "a console that redraws": f"\x1b[2J\x1b[1;1H\x1b[m{LINE}\n",
    "pstore": f"Panic#1 Part1\n<6>[  199.0] x\n<3>{LINE}\n",
    "colours as less shows them": f"^[[32m[  200.011791] ^[[0m^[[33m{XID}^[[0m\n",
    "pasted from a web page": LINE.replace("name=x", "name=&lt;unknown&gt;") + "\n",
    "UTF-16 without its mark": f"[1.0] x\n{LINE}\n".encode("utf-16-le"),
    "bzip2": bz2.compress(LINE.encode()),
    "xz": lzma.compress(LINE.encode()),
}


def read(log: str | bytes) -> tuple[list[Told], Reading]:
    reading = Reading()
    saved = SavedLog(io.BytesIO(log if isinstance(log, bytes) else log.encode()))
    return list(reading.read(saved)), reading


@pytest.mark.parametrize("log", HANDED_ON.values(), ids=HANDED_ON.keys())
def test_the_kernel_s_line_is_found(log: str | bytes) -> None:
    told, reading = read(log)
    [one] = told
    assert (one.event.code, one.event.pci, one.event.message) == (79, "0000:3b:00", "GPU has fallen off the bus.")
    assert reading.node_suspect


OF_A_PROCESS = {
    "the journal's JSON of a program": js(MESSAGE=XID, _TRANSPORT="stdout"),
    "JSON with a program's name": js(message=XID, appname="trainer"),
    "JSON with another facility": js(message=XID, programname="kernel", facility="user"),
    "JSON that says nothing": js(message=XID, level="info"),
    "CRI": f"{AT} stdout F {XID}\n",
    "CRI: JSON that says nothing": f"{AT} stdout F {js(msg=XID, level='info')}",
    "CRI: a quote": f"{AT} stdout F node log: {LINE}\n",
    "fluent-bit": f'[0] app.0: [[1777957505.1, {{}}], {{"log"=>"{XID}"}}]\n',
    "JSON of a kernel in a program's line": f"Feb  1 00:00:00 n101 shipper[1]: {JOURNAL}",
    "logfmt": f'time=2026-05-05T05:05:05Z level=error component=gpu msg="{XID}"\n',
    "CSV": f'2026-05-05T05:05:05Z,n101,trainer,"{XID}"\n',
    "tab-separated": f"2026-05-05T05:05:05Z\tn101\ttrainer\tinfo\t{XID}\n",
    "Loki": f'2026-05-05T05:05:05Z {{app="trainer"}} {XID}\n',
    "a program's indented quote": f"Feb  1 00:00:00 n101 app[1]: dmesg says\n    {LINE}\n",
}


@pytest.mark.parametrize("log", OF_A_PROCESS.values(), ids=OF_A_PROCESS.keys())
def test_a_process_s_words_are_shown_and_do_not_count(log: str) -> None:
    told, reading = read(f"[  1.0] NVRM: loading NVIDIA UNIX Kernel Module  570.1\n{log}")
    assert told == []
    assert not reading.node_suspect
    assert reading.quoted.count


@pytest.mark.parametrize(
    ("log", "printed"),
    [
        (JOURNAL, "2026-05-05T05:05:05Z"),
        (js(message=XID, appname="kernel", ts=1777957505123), "2026-05-05T05:05:05Z"),
        (js(message=XID, appname="kernel", time="2026-05-05T05:05:05Z"), "2026-05-05T05:05:05Z"),
        (js(sec=200, usec=91, sequence=1, msg=XID), "200.000091"),
        (js(message=XID, appname="kernel", time={"not": "a time"}), None),
    ],
)
def test_the_time_of_an_object_is_found(log: str, printed: str | None) -> None:
    _, reading = read(log)
    [row] = reading.rows.values()
    assert (row.first_at and row.first_at.printed) == printed


@pytest.mark.parametrize(
    "hostile",
    [
        '{"a":' * 20_000 + "1" + "}" * 20_000,
        "[" * 60_000,
        '{"message":"' + '{\\"message\\":' * 4_000 + '"}',
        "a=" * 30_000 + " msg=",
        'msg="' + "\\" * 60_000,
        '"' * 60_000 + ",",
        f"{AT} stdout P " + "x" * 50_000,
    ],
)
def test_hostile_objects_cost_linear_time(hostile: str) -> None:
    """The guard is pytest's own timeout."""
    read(f"{hostile}\n" * 20)

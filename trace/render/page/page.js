'use strict';
// The page of a trace. All text from the cluster becomes text nodes; nothing is parsed as HTML.
(() => {
  const data = JSON.parse(document.getElementById('data').textContent);
  const $ = (id) => document.getElementById(id);

  // el creates an element: attributes by name, class and text apart, then its children.
  function el(tag, attributes, ...children) {
    const e = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name === 'text') e.textContent = value;
      else if (name === 'class') e.className = value;
      else if (value !== undefined && value !== null && value !== false) e.setAttribute(name, value);
    }
    e.append(...children.filter((c) => c !== null && c !== undefined));
    return e;
  }

  // Which colour a stage has.
  const kinds = {
    request: 'api', reconcile: 'controller', queue: 'scheduler', schedule: 'scheduler', bind: 'scheduler', volume: 'volume',
    sandbox: 'network', cni: 'network', 'stop-sandbox': 'network', pull: 'image', create: 'container', start: 'container',
    run: 'container', stop: 'container', hook: 'container', probe: 'container', deliver: 'kubelet', setup: 'kubelet',
    prepare: 'kubelet', settle: 'kubelet', grace: 'kubelet', sync: 'kubelet', terminate: 'kubelet',
  };
  const kindOf = (stage) => kinds[stage] || 'other';
  const colour = (e, kind) => e.style.setProperty('--c', 'var(--' + kind + ')');

  // at returns milliseconds since 1970 with their fractions, which Date drops.
  function at(text) {
    const m = /^(.*?)(\.\d+)?(Z|[+-]\d\d:\d\d)$/.exec(text);
    return m ? Date.parse(m[1] + m[3]) + (m[2] ? Number(m[2]) * 1000 : 0) : 0;
  }

  // took is a duration in milliseconds, in three digits.
  function took(ms) {
    if (ms < 0) return '-' + took(-ms);
    if (ms === 0) return '0';
    if (ms < 0.9995) return Math.round(ms * 1000) + 'µs';
    if (ms < 9.95) return ms.toFixed(1) + 'ms';
    if (ms < 999.5) return ms.toFixed(0) + 'ms';
    if (ms < 9995) return (ms / 1000).toFixed(2) + 's';
    if (ms < 59950) return (ms / 1000).toFixed(1) + 's';
    const pad = (n) => String(n).padStart(2, '0');
    const s = Math.round(ms / 1000), m = Math.round(ms / 60000);
    if (s < 3600) return Math.floor(s / 60) + 'm ' + pad(s % 60) + 's';
    return Math.floor(m / 60) + 'h ' + pad(m % 60) + 'm';
  }

  function bytes(n) {
    let unit = 'B';
    for (const u of ['kB', 'MB', 'GB', 'TB']) {
      if (n < 999.5) break;
      n /= 1000;
      unit = u;
    }
    return (n < 9.95 && unit !== 'B' ? n.toFixed(1) : n.toFixed(0)) + ' ' + unit;
  }

  const percent = (f) => (f > 0 && f < 0.005 ? '<1' : Math.round(f * 100)) + '%';
  const clock = (text) => new Date(at(text)).toISOString().replace('T', ' ').replace('Z', ' UTC');

  // The nodes of a verdict: some names, or none if the reader may not know them.
  function nodesOf(verdict) {
    const names = verdict.nodes || [], more = verdict.count - names.length;
    if (!names.length) return verdict.count + ' nodes';
    return names.join(', ') + (more > 0 ? ' and ' + more + ' more' : '');
  }

  function nameOf(ref) {
    const dot = ref.resource.indexOf('.');
    let plural = dot < 0 ? ref.resource : ref.resource.slice(0, dot);
    const group = dot < 0 ? '' : ref.resource.slice(dot + 1);
    if (plural.endsWith('ies')) plural = plural.slice(0, -3) + 'y';
    else if (plural.endsWith('sses')) plural = plural.slice(0, -2);
    else if (plural.endsWith('s') && plural !== 'endpoints') plural = plural.slice(0, -1);
    return plural + (group.includes('.') && !group.endsWith('.k8s.io') ? '.' + group : '') + '/' + ref.name;
  }
  const keyOf = (ref) => [ref.resource, ref.namespace, ref.name].join('/');

  // The timeline that is shown, and how.
  let t = null; // with begin, end and total in milliseconds
  let view = { from: 0, to: 1 }; // in milliseconds since t.begin
  let rows = []; // of the chart, in order: {key, kind, span, depth, above, below, element, bar, note}
  const open = new Map(); // by key: what the user opened or closed
  let focused = '', selected = '';

  // load prepares a timeline of the server: times as numbers, spans with their parts.
  function load(timeline) {
    const begin = at(timeline.begin), end = at(timeline.end);
    const spans = (timeline.spans || []).map((s) => ({ ...s, from: at(s.begin) - begin, to: at(s.end) - begin, parts: [] }));
    const byID = new Map(spans.map((s) => [s.id, s]));
    for (const s of spans) {
      s.above = byID.get(s.parent);
      s.kind = kindOf(s.stage);
      if (s.above) {
        s.above.parts.push(s);
        if (s.kind === 'other') s.kind = s.above.kind;
      }
    }
    const objects = new Map();
    for (const s of spans) {
      if (s.above) continue;
      const key = keyOf(s.object) + '/' + (s.object.uid || '');
      if (!objects.has(key)) objects.set(key, { key, object: s.object, spans: [] });
      objects.get(key).spans.push(s);
    }
    for (const o of objects.values()) {
      o.spans.sort((a, b) => a.from - b.from);
      o.from = Math.min(...o.spans.map((s) => s.from));
      o.to = Math.max(...o.spans.map((s) => s.to));
      o.critical = o.spans.some((s) => s.critical);
      o.error = o.spans.some((s) => s.error);
      o.node = (o.spans.find((s) => s.node) || {}).node;
    }
    return { ...timeline, spans, byID, objects: [...objects.values()], total: Math.max(end - begin, 0.001), start: begin };
  }

  function show(timeline) {
    const before = t && keyOf(t.object) === keyOf(timeline.object) && t.begin === timeline.begin ? t : null;
    const whole = !before || view.from <= 0 && view.to >= before.total;
    t = load(timeline);
    if (whole) view = { from: 0, to: t.total };
    if (!before) {
      open.clear();
      focused = selected = '';
      $('evidence').hidden = true;
    }
    document.title = nameOf(t.object) + ' - Kubelith trace';
    for (const id of ['overview', 'chart', 'hint']) $(id).hidden = false;
    summary();
    overview();
    chart();
    if (selected) evidence(selected, false);
  }

  // longest is the span with the most of the critical path.
  function longest() {
    let best = null, most = 0;
    for (const s of t.critical || []) {
      const d = at(s.end) - at(s.begin);
      if (d > most && t.byID.has(s.span)) [best, most] = [t.byID.get(s.span), d];
    }
    return best && { span: best, took: most };
  }

  function title(s) {
    if (!s.name) return s.stage;
    return s.stage + (s.stage === 'schedule' || s.stage === 'bind' ? ' → ' : ' ') + s.name;
  }

  function summary() {
    const failed = /^(failed|refused)/.test(t.outcome);
    const lines = [
      el('h2', {}, nameOf(t.object) + (t.object.namespace ? ' in ' + t.object.namespace : '')),
      el('p', {}, el('span', { class: 'outcome' + (failed ? ' bad' : t.settled ? ' good' : ''), text: t.outcome })),
      el('p', {}, el('b', { text: took(t.total) + (t.settled ? '' : ' so far') }),
        (t.setOff ? ' after the ' + t.setOff + ' at ' : ' since ') + clock(t.begin)),
    ];
    if (t.before) lines.push(el('p', { text: 'Before that: ' + t.before }));
    for (const f of t.failures || []) lines.push(el('p', { class: 'failure', text: title(f) + ': ' + f.error }));
    const most = longest();
    if (most) {
      const s = most.span;
      lines.push(el('p', {}, 'Longest: ', el('b', { text: title(s) }),
        (s.node ? ' on ' + s.node : '') + ', ' + nameOf(s.object) + ', ' + took(most.took) + ' (' + percent(most.took / t.total) + ')'));
    }
    for (const notice of t.notices || []) lines.push(el('p', { class: 'notice', text: notice }));
    const shares = el('ul', { id: 'shares', 'aria-label': 'Where the time went' });
    const stages = t.stages || [];
    for (const s of stages.slice(0, 10)) {
      const mark = el('i');
      colour(mark, kindOf(s.stage));
      shares.append(el('li', { title: data.about[s.stage] }, mark, s.stage, el('span', { text: took(s.took / 1e6) + ', ' + percent(s.share) })));
    }
    if (stages.length > 10) shares.append(el('li', { text: (stages.length - 10) + ' more' }));
    $('summary').replaceChildren(...lines, shares);
  }

  // overview draws the critical path in one line, for the whole time.
  function overview() {
    const parts = [];
    for (const segment of t.critical || []) {
      const s = t.byID.get(segment.span);
      if (!s) continue;
      const from = at(segment.begin) - t.start, width = (at(segment.end) - at(segment.begin)) / t.total;
      const part = el('b', { class: (s.wait ? 'wait' : '') + (width < 0.03 ? ' short' : ''), title: title(s) + ', ' + took(width * t.total) });
      if (width >= 0.03) part.textContent = title(s);
      part.style.left = from / t.total * 100 + '%';
      part.style.width = width * 100 + '%';
      colour(part, s.kind);
      parts.push(part);
    }
    $('overview').replaceChildren(...parts, el('div', { class: 'outside' }), el('div', { class: 'outside' }));
    outside();
  }

  function outside() {
    const [left, right] = $('overview').querySelectorAll('.outside');
    if (!left) return;
    left.style.left = '0';
    left.style.width = view.from / t.total * 100 + '%';
    right.style.left = view.to / t.total * 100 + '%';
    right.style.width = (1 - view.to / t.total) * 100 + '%';
  }

  const spanKey = (s) => [keyOf(s.object), s.object.uid, s.above ? spanKey(s.above) : '', s.stage, s.name, s.begin].join(' ');
  const calls = new Set(['cni', 'hook', 'volume']);

  // isOpen reports whether the parts of a row are shown: as the user chose, or else those that say something by themselves.
  function isOpen(row) {
    if (open.has(row.key)) return open.get(row.key);
    if (row.span) return row.span.parts.some((p) => p.error || calls.has(p.stage));
    const alike = t.objects.filter((o) => o.object.resource === row.object.object.resource).length;
    return alike <= 4 || row.object.critical || row.object.error;
  }

  function matches(s, words) {
    const text = [s.stage, s.name, nameOf(s.object), s.object.namespace, s.node, s.by, s.message, s.error].join(' ').toLowerCase();
    return words.every((w) => text.includes(w));
  }

  // visible returns the rows to show, in order.
  function visible() {
    const words = $('filter').value.toLowerCase().split(/\s+/).filter(Boolean), only = $('only').checked;
    const wanted = (s) => (!only || s.critical || s.above && s.above.critical) && (!words.length || matches(s, words) || s.parts.some(wanted));
    const all = [];
    for (const o of t.objects) {
      const spans = o.spans.filter(wanted);
      if (!spans.length) continue;
      const top = { key: o.key, object: o, depth: 0, level: 1, parts: true };
      all.push(top);
      if (!words.length && !isOpen(top)) continue;
      const add = (s, level) => {
        const row = { key: spanKey(s), span: s, depth: level - 1, level, parts: s.parts.length > 0, above: top };
        all.push(row);
        if (words.length ? s.parts.some((p) => matches(p, words) && !matches(s, words)) || isOpen(row) : isOpen(row)) {
          s.parts.filter((p) => !words.length || wanted(p) || matches(s, words)).forEach((p) => add(p, level + 1));
        }
      };
      spans.forEach((s) => add(s, 2));
    }
    return all;
  }

  function note(s) {
    const notes = [];
    if (s.count > 1) notes.push(s.count + ' times');
    if (s.bytes) notes.push(bytes(s.bytes) + (s.to - s.from > 1 ? ', ' + bytes(s.bytes / (s.to - s.from) * 1000) + '/s' : ''));
    if (s.error) notes.push(s.error);
    else if (s.stage === 'request' && s.by) notes.push(s.by);
    else if (s.message && !s.above) notes.push(s.message);
    if (!t.settled && s.wait && s.to >= t.total) notes.push('so far');
    const text = notes.join(', ');
    return text.length > 90 ? text.slice(0, 88) + '…' : text;
  }

  // chart draws all rows.
  function chart() {
    const hadFocus = $('rows').contains(document.activeElement);
    rows = visible();
    const list = [];
    let group = null;
    for (const row of rows) {
      if (row.object || !group) list.push(group = el('div', { class: 'group', role: 'rowgroup' }));
      group.append(draw(row));
    }
    $('rows').replaceChildren(...list);
    $('none').hidden = rows.length > 0;
    const current = rows.find((r) => r.key === focused) || rows[0];
    if (current) {
      focused = current.key;
      current.element.tabIndex = 0;
      if (hadFocus) current.element.focus({ preventScroll: true });
    }
    place();
  }

  function draw(row) {
    const s = row.span, o = row.object;
    const critical = s ? s.critical : o.critical, error = s ? s.error : false;
    const duration = s ? (s.moment ? '' : took(s.to - s.from)) : took(o.to - o.from);
    const name = el('span', { class: 'name' });
    if (s) {
      name.append(s.stage);
      if (s.name) name.append(el('em', { text: (s.stage === 'schedule' || s.stage === 'bind' ? ' → ' : ' ') + s.name }));
      name.title = title(s);
    } else {
      name.append(nameOf(o.object));
      if (o.node && o.object.resource === 'pods') name.append(el('em', { text: ' on ' + o.node }));
      name.title = nameOf(o.object);
    }
    row.bar = el('i', { class: [!s ? 'whole' : s.moment ? 'moment' : s.wait ? 'wait' : '', error ? 'bad' : ''].join(' ') });
    if (s) colour(row.bar, s.kind);
    row.note = el('span', { text: s ? note(s) : '' });
    const shown = row.parts ? isOpen(row) : undefined;
    row.element = el('div', {
      class: 'row' + (critical ? ' critical' : '') + (error ? ' failed' : '') + (o ? ' object' : ''), role: 'row', tabindex: '-1',
      'aria-level': row.level, 'aria-expanded': row.parts ? String(shown) : undefined, 'aria-selected': String(row.key === selected),
      'aria-label': [s ? title(s) : nameOf(o.object), duration, critical ? 'on the critical path' : '', error ? 'failed' : ''].filter(Boolean).join(', '),
    },
    el('div', { class: 'label', role: 'gridcell' }, el('span', { class: 'twist', 'aria-hidden': 'true', text: row.parts ? (shown ? '▾' : '▸') : '' }), name),
    el('div', { class: 'took', role: 'gridcell', text: duration }),
    el('div', { class: 'lane', role: 'gridcell', 'aria-hidden': 'true' }, row.bar, row.note));
    row.element.style.setProperty('--depth', row.depth);
    row.element.addEventListener('click', (e) => {
      if (dragged) return;
      focus(row);
      if (row.parts && (o || e.target.className === 'twist')) toggle(row);
      else evidence(row.key, false);
    });
    return row.element;
  }

  // place moves all bars to where the view wants them, and draws the ruler.
  function place() {
    const width = view.to - view.from;
    const x = (ms) => (ms - view.from) / width * 100;
    const lane = $('ruler').clientWidth;
    for (const row of rows) {
      const { from, to } = row.span || row.object;
      const left = x(from), right = x(to);
      row.bar.style.left = left + '%';
      if (!(row.span && row.span.moment)) row.bar.style.width = Math.max(right - left, 0) + '%';
      const away = right < 0 || left > 100;
      row.bar.hidden = away;
      // A note stands behind its bar, or before it where there is no room.
      const room = (100 - Math.max(right, 0)) / 100 * lane, needed = row.note.textContent.length * 6.6 + 14;
      row.note.hidden = away || !row.note.textContent || room < needed && left / 100 * lane < needed && room < 140;
      const before = room < needed && left / 100 * lane >= needed;
      row.note.className = before ? 'before' : '';
      row.note.style.left = (before ? left : Math.max(right, 0)) + '%';
    }
    const ticks = [];
    const step = [1, 2, 5].flatMap((n) => [...Array(13).keys()].map((e) => n * 10 ** (e - 4))).concat([60e3, 120e3, 300e3, 600e3, 1800e3, 3600e3, 7200e3, 21600e3])
      .filter((n) => n < 60e3 || n % 60e3 === 0).sort((a, b) => a - b).find((n) => n / width * lane >= 84) || width;
    for (let i = Math.ceil(view.from / step); i * step <= view.to; i++) {
      const mark = el('span', { text: tick(i * step) });
      mark.style.left = x(i * step) + '%';
      ticks.push(mark);
    }
    $('ruler').replaceChildren(...ticks);
    outside();
    $('in').disabled = width <= least();
    $('out').disabled = $('whole').disabled = view.from <= 0 && view.to >= t.total;
  }

  const least = () => Math.min(0.01, t.total);
  const trim = (n) => String(Number(n.toFixed(4)));
  function tick(ms) {
    if (ms === 0) return '0';
    if (Math.abs(ms) < 1) return trim(ms * 1000) + 'µs';
    if (ms < 1000) return trim(ms) + 'ms';
    if (ms < 60e3) return trim(ms / 1000) + 's';
    const s = Math.round(ms / 1000 % 60);
    return Math.floor(ms / 60e3) + 'm' + (s ? ' ' + s + 's' : '');
  }

  function zoomTo(from, to) {
    if (!t) return;
    let width = Math.min(Math.max(to - from, least()), t.total);
    from = Math.min(Math.max(from, 0), t.total - width);
    view = { from, to: from + width };
    place();
    $('said').textContent = width >= t.total ? 'All is shown' : 'From ' + tick(view.from) + ' to ' + tick(view.to);
  }

  // zoom scales the view around a place in it, 0 to 1.
  function zoom(factor, place = 0.5) {
    const width = view.to - view.from, middle = view.from + width * place;
    zoomTo(middle - width * factor * place, middle + width * factor * (1 - place));
  }

  const pan = (share) => zoomTo(view.from + (view.to - view.from) * share, view.to + (view.to - view.from) * share);

  function focus(row) {
    if (!row) return;
    for (const r of rows) r.element.tabIndex = -1;
    focused = row.key;
    row.element.tabIndex = 0;
    row.element.focus({ preventScroll: true });
    row.element.scrollIntoView({ block: 'nearest' });
  }

  function toggle(row) {
    open.set(row.key, !isOpen(row));
    chart();
    focus(rows.find((r) => r.key === row.key));
  }

  function table(head, body) {
    const number = (c) => typeof c === 'number' || c && c.n !== undefined;
    const cells = (tag, list, example) => list.map((c, i) => c instanceof Node ? el(tag, { class: 'bar' }, c)
      : el(tag, { class: number(example[i]) ? 'n' : '', text: c && c.n !== undefined ? c.n : c }));
    return el('div', { class: 'scroll' }, el('table', {}, el('thead', {}, el('tr', {}, ...cells('th', head, body[0] || []))),
      el('tbody', {}, ...body.map((list) => el('tr', { class: list.best ? 'best' : '' }, ...cells('td', list, list))))));
  }

  // bars are the durations of parts, in a table.
  function timesTable(what, spans, total) {
    return table([what, 'Took', ''], spans.map((p) => {
      const bar = el('i');
      colour(bar, p.error ? 'bad' : p.kind);
      bar.style.width = Math.min((p.to - p.from) / total, 1) * 100 + '%';
      return [title(p) + (p.error ? ': ' + p.error : ''), { n: p.moment ? '' : took(p.to - p.from) }, bar];
    }));
  }

  // evidence shows all that is known of a row.
  function evidence(key, move) {
    const row = rows.find((r) => r.key === key);
    if (!row) return;
    selected = key;
    for (const r of rows) r.element.setAttribute('aria-selected', String(r.key === key));
    const s = row.span, close = el('button', { id: 'close', type: 'button', text: 'Close' });
    close.addEventListener('click', closeEvidence);
    const facts = el('dl'), panel = $('evidence');
    const fact = (name, value) => value && facts.append(el('dt', { text: name }), el('dd', { text: value }));
    const parts = [close];
    if (s) {
      parts.push(el('h2', { text: title(s) }));
      fact('What', data.about[s.stage]);
      fact('Object', nameOf(s.object) + (s.object.namespace ? ' in ' + s.object.namespace : ''));
      fact('Node', s.node);
      fact('By', s.by);
      fact('Begin', '+' + took(s.from) + ', ' + clock(s.begin));
      if (!s.moment) fact('Took', took(s.to - s.from) + ', ' + percent((s.to - s.from) / t.total) + ' of the whole');
      fact('Path', s.critical ? 'critical: what came after waited for it' : '');
      fact('Kind', s.wait ? 'a wait: the time until the next thing that is recorded' : '');
      fact('Count', s.count > 1 ? s.count + ' times' : '');
      fact('Bytes', s.bytes ? bytes(s.bytes) + (s.to - s.from > 1 ? ', ' + bytes(s.bytes / (s.to - s.from) * 1000) + '/s' : '') : '');
      fact('Memory', s.peak ? bytes(s.peak) + ' at most' : '');
      fact('Says', s.message);
      parts.push(facts);
      if (s.error) parts.push(el('div', { class: 'error', text: s.error }));
      if (s.parts.length) parts.push(el('h3', { text: 'Steps' }), timesTable('Step', s.parts, s.to - s.from));
      if ((s.verdicts || []).length) {
        parts.push(el('h3', { text: 'Nodes that filters excluded' }), table(['Nodes', 'Plugin', 'Reason'],
          s.verdicts.map((v) => [nodesOf(v), v.plugin, v.reason])));
      }
      if ((s.scores || []).length) {
        const plugins = [...new Set(s.scores.flatMap((c) => Object.keys(c.plugins || {})))].sort();
        const nodes = [...s.scores].sort((a, b) => b.total - a.total);
        const body = plugins.map((p) => [p, ...nodes.map((c) => ({ n: String((c.plugins || {})[p] ?? '') }))]);
        const totals = ['Total', ...nodes.map((c) => ({ n: String(c.total) }))];
        totals.best = true;
        parts.push(el('h3', { text: 'Scores' }), table(['Plugin', ...nodes.map((c) => c.node)], [...body, totals]));
      }
    } else {
      const o = row.object;
      parts.push(el('h2', { text: nameOf(o.object) }));
      fact('Namespace', o.object.namespace);
      fact('UID', o.object.uid);
      fact('Node', o.node);
      fact('Took', took(o.to - o.from));
      parts.push(facts, el('h3', { text: 'Stages' }), timesTable('Stage', o.spans, o.to - o.from || 1));
    }
    const at = panel.scrollTop, again = panel.dataset.key === key;
    panel.dataset.key = key;
    panel.replaceChildren(...parts);
    panel.hidden = false;
    panel.scrollTop = again ? at : 0;
    if (move) panel.focus();
    place();
  }

  function closeEvidence() {
    $('evidence').hidden = true;
    selected = '';
    for (const r of rows) r.element.setAttribute('aria-selected', 'false');
    place();
    focus(rows.find((r) => r.key === focused));
  }

  // Selecting a part of the time with the pointer.
  let dragged = false;
  function dragging(area, rect, range) {
    area.addEventListener('pointerdown', (e) => {
      dragged = false;
      const box = rect();
      if (!t || e.button !== 0 || e.pointerType === 'touch' && area.id === 'rows' || e.clientX < box.left || e.clientX > box.right) return;
      const begin = e.clientX;
      let mark = null;
      const share = (x) => Math.min(Math.max((x - box.left) / box.width, 0), 1);
      const move = (m) => {
        if (!dragged && Math.abs(m.clientX - begin) < 5) return;
        if (!mark) {
          dragged = true;
          mark = el('div', { class: 'selection' });
          (area.id === 'overview' ? area : $('chart')).append(mark);
        }
        const base = (area.id === 'overview' ? area : $('chart')).getBoundingClientRect().left;
        const [a, b] = [Math.min(begin, m.clientX), Math.max(begin, m.clientX)].map((x) => box.left + share(x) * box.width);
        mark.style.left = a - base + 'px';
        mark.style.width = b - a + 'px';
        m.preventDefault();
      };
      const end = (m) => {
        window.removeEventListener('pointermove', move);
        window.removeEventListener('pointerup', end);
        window.removeEventListener('pointercancel', end);
        if (!mark) return;
        mark.remove();
        const r = range(), [a, b] = [share(begin), share(m.clientX)].sort((x, y) => x - y);
        if (m.type === 'pointerup') zoomTo(r.from + a * (r.to - r.from), r.from + b * (r.to - r.from));
        setTimeout(() => { dragged = false; }, 0);
      };
      window.addEventListener('pointermove', move);
      window.addEventListener('pointerup', end);
      window.addEventListener('pointercancel', end);
    });
  }
  const lane = () => $('ruler').getBoundingClientRect();
  dragging($('rows'), lane, () => view);
  dragging($('ruler'), lane, () => view);
  dragging($('overview'), () => $('overview').getBoundingClientRect(), () => ({ from: 0, to: t.total }));

  // The wheel zooms over the ruler and the overview, and with Ctrl anywhere; sideways it moves.
  $('body').addEventListener('wheel', (e) => {
    if (!t) return;
    const over = (id) => $(id).contains(e.target), inside = over('chart') || over('overview');
    if (!inside) return;
    const sideways = e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY);
    if (sideways && (view.from > 0 || view.to < t.total)) {
      e.preventDefault();
      pan((e.deltaX || e.deltaY) / 800);
    } else if (!sideways && (e.ctrlKey || e.metaKey || over('ruler') || over('overview'))) {
      e.preventDefault();
      const box = over('overview') ? $('overview').getBoundingClientRect() : lane();
      let place = Math.min(Math.max((e.clientX - box.left) / box.width, 0), 1);
      if (over('overview')) place = Math.min(Math.max((place * t.total - view.from) / (view.to - view.from), 0), 1);
      zoom(Math.exp(Math.min(Math.max(e.deltaY, -100), 100) / 250), place);
    }
  }, { passive: false });

  document.addEventListener('keydown', (e) => {
    if (!t || e.ctrlKey || e.metaKey || e.altKey) return;
    const typing = e.target === $('filter');
    if (e.key === 'Escape') {
      if (typing && $('filter').value) {
        $('filter').value = '';
        chart();
      } else if (!$('evidence').hidden) closeEvidence();
      return;
    }
    if (typing) {
      if (e.key === 'ArrowDown' || e.key === 'Enter') {
        e.preventDefault();
        focus(rows[0]);
      }
      return;
    }
    const inRows = $('rows').contains(e.target), index = rows.findIndex((r) => r.key === focused), row = rows[index];
    const free = inRows || e.target === document.body || $('evidence').contains(e.target);
    let done = true;
    if (e.key === '+' || e.key === '=') zoom(1 / 1.5);
    else if (e.key === '-' || e.key === '_') zoom(1.5);
    else if (e.key === '0') zoomTo(0, t.total);
    else if (e.key === '/') $('filter').focus();
    else if (e.key === 'ArrowLeft' && free) pan(-0.2);
    else if (e.key === 'ArrowRight' && free) pan(0.2);
    else if (e.key === 'ArrowDown' && inRows) focus(rows[Math.min(index + 1, rows.length - 1)]);
    else if (e.key === 'ArrowUp' && inRows) focus(rows[Math.max(index - 1, 0)]);
    else if (e.key === 'ArrowDown' && e.target === document.body) focus(row);
    else if (e.key === 'Home' && inRows) focus(rows[0]);
    else if (e.key === 'End' && inRows) focus(rows[rows.length - 1]);
    else if (e.key === 'Enter' && inRows && row) evidence(row.key, true);
    else if (e.key === ' ' && inRows && row) {
      if (row.parts) toggle(row);
    } else done = false;
    if (done) e.preventDefault();
  });

  $('in').addEventListener('click', () => zoom(1 / 1.5));
  $('out').addEventListener('click', () => zoom(1.5));
  $('whole').addEventListener('click', () => t && zoomTo(0, t.total));
  $('filter').addEventListener('input', () => t && chart());
  $('only').addEventListener('change', () => t && chart());
  new ResizeObserver(() => t && place()).observe($('ruler'));

  // Light and dark: as the system has it, until the user chooses.
  const system = matchMedia('(prefers-color-scheme: dark)');
  let chosen = null;
  try { chosen = localStorage.getItem('kubelith-trace-theme'); } catch { /* no storage for files */ }
  function paint() {
    const dark = chosen ? chosen === 'dark' : system.matches;
    document.documentElement.classList.toggle('dark', dark);
    $('theme').setAttribute('aria-pressed', String(dark));
  }
  system.addEventListener('change', paint);
  $('theme').addEventListener('click', () => {
    chosen = document.documentElement.classList.contains('dark') ? 'light' : 'dark';
    try { localStorage.setItem('kubelith-trace-theme', chosen); } catch { /* as above */ }
    paint();
  });
  paint();

  // The list of timelines: those of the page, or with a server behind it what is new there.
  let current = '';
  function list(items) {
    $('list').hidden = false;
    $('list').replaceChildren(el('h2', { text: 'Timelines' }), ...items.map((item) => {
      const button = el('button', { type: 'button', 'aria-current': String(item.key === current) },
        nameOf(item.object), el('small', { text: item.text }));
      button.addEventListener('click', item.choose);
      return button;
    }));
    if (!items.length) $('list').append(el('small', { text: 'Nothing yet: create something.' }));
  }

  function still() {
    const choose = (i) => {
      current = String(i);
      show(data.timelines[i]);
      if (data.timelines.length > 1) {
        list(data.timelines.map((x, n) => ({ key: String(n), object: x.object, text: took(at(x.end) - at(x.begin)) + ', ' + x.outcome, choose: () => choose(n) })));
      }
    };
    if (data.timelines.length) choose(0);
  }

  const pause = (ms) => new Promise((done) => setTimeout(done, ms));
  async function ask(path, query, signal) {
    const answer = await fetch(path + '?' + new URLSearchParams(query), { signal });
    const body = await answer.json();
    if (!answer.ok) throw new Error(body.error);
    return body;
  }
  function trouble(error) {
    const line = el('p', { class: 'notice', id: 'trouble', text: 'No news: ' + (error instanceof TypeError ? 'kubelith trace --serve has ended' : error.message) });
    if ($('trouble')) $('trouble').remove();
    $('summary').append(line);
  }

  async function live() {
    let items = [], stop = null, chose = false;
    const redraw = () => list(items.map((s) => ({
      key: keyOf(s.object), object: s.object,
      text: s.what + ', ' + took(s.took / 1e6) + (s.settled ? '' : ' so far') + (s.object.namespace ? ', in ' + s.object.namespace : ''),
      choose: () => { chose = true; watch(s.object); },
    })));
    async function watch(object) {
      if (stop) stop.abort();
      const own = stop = new AbortController();
      current = keyOf(object);
      redraw();
      for (let after = 0; !own.signal.aborted;) {
        try {
          const timeline = await ask('timeline', { resource: object.resource, namespace: object.namespace || '', name: object.name, after }, own.signal);
          if (own.signal.aborted) return;
          if (timeline.seq !== after || !timeline.settled) show(timeline);
          after = timeline.seq;
          await pause(150);
        } catch (error) {
          if (own.signal.aborted) return;
          trouble(error);
          await pause(2000);
        }
      }
    }
    for (let after = 0; ;) {
      try {
        const answer = await ask('recent', { after });
        after = answer.seq;
        items = answer.timelines || [];
        redraw();
        if (items.length && !chose && keyOf(items[0].object) !== current) watch(items[0].object);
        await pause(500);
      } catch (error) {
        trouble(error);
        await pause(2000);
      }
    }
  }
  if (data.live) live();
  else still();
})();

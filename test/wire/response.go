package wire

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
)

// head is the status line and the headers of a response.
type head struct {
	status  int
	header  http.Header
	chunked bool
	length  int // -1 if it is not given
}

// decoder takes a response's bytes as they come and gives those of its body.
type decoder struct {
	buf  []byte
	head *head
	left int  // bytes left of the body, or of the chunk
	tail bool // inside a chunked body, the CRLF after a chunk is due
	done bool
}

// feed takes in bytes and returns body bytes that they brought.
func (d *decoder) feed(b []byte) (body []byte, err error) {
	d.buf = append(d.buf, b...)
	for d.head == nil {
		end := bytes.Index(d.buf, []byte("\r\n\r\n"))
		if end < 0 {
			return nil, nil
		}
		h, err := parseHead(string(d.buf[:end]))
		if err != nil {
			return nil, err
		}
		d.buf = d.buf[end+4:]
		if h.status == 100 {
			continue
		}
		d.head, d.left = h, h.length
		d.done = h.length == 0 || h.status == 204 || h.status == 304
		if h.chunked {
			d.left, d.done = 0, false
		}
	}
	for !d.done && len(d.buf) > 0 {
		switch {
		case !d.head.chunked:
			n := len(d.buf)
			if d.left >= 0 {
				n = min(n, d.left)
				d.left -= n
				d.done = d.left == 0
			}
			body = append(body, d.buf[:n]...)
			d.buf = d.buf[n:]
		case d.left > 0:
			n := min(d.left, len(d.buf))
			body = append(body, d.buf[:n]...)
			d.buf = d.buf[n:]
			d.left -= n
			d.tail = d.left == 0
		case d.tail:
			if len(d.buf) < 2 {
				return body, nil
			}
			if string(d.buf[:2]) != "\r\n" {
				return body, errors.New("a chunk does not end with CRLF")
			}
			d.buf, d.tail = d.buf[2:], false
		default:
			end := bytes.Index(d.buf, []byte("\r\n"))
			if end < 0 {
				return body, nil
			}
			size, err := strconv.ParseInt(string(d.buf[:end]), 16, 32)
			if err != nil {
				return body, fmt.Errorf("chunk size %q", d.buf[:end])
			}
			if size == 0 {
				if len(d.buf) < end+4 {
					return body, nil
				}
				d.done = true
			}
			d.buf, d.left = d.buf[end+2:], int(size)
		}
	}
	return body, nil
}

func parseHead(s string) (*head, error) {
	first, rest, _ := strings.Cut(s, "\r\n")
	proto, status, _ := strings.Cut(first, " ")
	code, _, _ := strings.Cut(status, " ")
	h := &head{header: http.Header{}, length: -1}
	var err error
	if h.status, err = strconv.Atoi(code); err != nil || !strings.HasPrefix(proto, "HTTP/1.") {
		return nil, fmt.Errorf("status line %q", first)
	}
	for line := range strings.SplitSeq(rest, "\r\n") {
		if k, v, ok := strings.Cut(line, ":"); ok {
			h.header.Add(textproto.CanonicalMIMEHeaderKey(k), strings.TrimSpace(v))
		}
	}
	h.chunked = strings.EqualFold(h.header.Get("Transfer-Encoding"), "chunked")
	if v := h.header.Get("Content-Length"); v != "" {
		if h.length, err = strconv.Atoi(v); err != nil {
			return nil, fmt.Errorf("content length %q", v)
		}
	}
	return h, nil
}

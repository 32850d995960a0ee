// SPDX-License-Identifier: MIT
// How a warm child runs a program and ends, as `python main.py` does: the same functions of the interpreter in the same
// order, called with no Python frame below the program's own. Only taking the whole interpreter apart, which costs more
// than most programs, is left out where nothing can tell.
//
// No header of Python is used, so one library serves every CPython from 3.9 on.
#ifndef AGENTBOX_PROGRAM_H
#define AGENTBOX_PROGRAM_H

typedef struct object PyObject;
typedef struct interpreter PyInterpreterState;
typedef struct thread PyThreadState;

extern PyObject *PyExc_SystemExit, *PyExc_KeyboardInterrupt;
extern PyObject _Py_NoneStruct;
#define NONE (&_Py_NoneStruct)

PyInterpreterState *PyInterpreterState_Get(void);
PyThreadState *PyThreadState_Get(void);
PyThreadState *PyThreadState_New(PyInterpreterState *);
void PyThreadState_Clear(PyThreadState *);
void PyThreadState_Delete(PyThreadState *);
void PyThreadState_DeleteCurrent(void);
void PyEval_RestoreThread(PyThreadState *);
void PyOS_BeforeFork(void);
void PyOS_AfterFork_Child(void);
int Py_FinalizeEx(void);
const char *Py_GetVersion(void);

PyObject *Py_CompileString(const char *, const char *, int);
PyObject *PyEval_EvalCode(PyObject *, PyObject *, PyObject *);
PyObject *PyRun_FileExFlags(FILE *, const char *, int, PyObject *, PyObject *, int, void *);
void PyErr_Print(void);
void PyErr_Clear(void);
PyObject *PyErr_Occurred(void);
int PyErr_GivenExceptionMatches(PyObject *, PyObject *);
void PyErr_Fetch(PyObject **, PyObject **, PyObject **);
void PyErr_Restore(PyObject *, PyObject *, PyObject *);
void PyErr_NormalizeException(PyObject **, PyObject **, PyObject **);
void PyErr_Display(PyObject *, PyObject *, PyObject *);
void PyErr_WriteUnraisable(PyObject *);
int PyException_SetTraceback(PyObject *, PyObject *);

void Py_DecRef(PyObject *);
void Py_IncRef(PyObject *);
PyObject *PyObject_Type(PyObject *);
unsigned long PyType_GetFlags(PyObject *);
PyObject *PyObject_GetAttrString(PyObject *, const char *);
PyObject *PyObject_CallObject(PyObject *, PyObject *);
PyObject *PyObject_CallFunction(PyObject *, const char *, ...);
PyObject *PyObject_CallMethod(PyObject *, const char *, const char *, ...);
int PyObject_SetItem(PyObject *, PyObject *, PyObject *);
int PyObject_IsTrue(PyObject *);
int PyObject_Print(PyObject *, FILE *, int);
int PyFile_WriteObject(PyObject *, PyObject *, int);
long PyLong_AsLong(PyObject *);
PyObject *PyBytes_FromStringAndSize(const char *, ssize_t);
int PyArg_ParseTuple(PyObject *, const char *, ...);
PyObject *PyModuleDef_Init(void *);
const char *PyUnicode_AsUTF8(PyObject *);
PyObject *PyWeakref_NewRef(PyObject *, PyObject *);
PyObject *PySys_GetObject(const char *);
void PySys_WriteStderr(const char *, ...);
PyObject *PyImport_GetModuleDict(void);
PyObject *PyModule_GetDict(PyObject *);
PyObject *PyDict_New(void);
PyObject *PyDict_Copy(PyObject *);
PyObject *PyDict_GetItem(PyObject *, PyObject *);
PyObject *PyDict_GetItemString(PyObject *, const char *);
int PyDict_SetItem(PyObject *, PyObject *, PyObject *);
int PyDict_SetItemString(PyObject *, const char *, PyObject *);
int PyDict_Next(PyObject *, ssize_t *, PyObject **, PyObject **);
int PyDict_DelItem(PyObject *, PyObject *);
void PyDict_Clear(PyObject *);
PyObject *PyList_New(ssize_t);
ssize_t PyList_Size(PyObject *);
PyObject *PyList_GetItem(PyObject *, ssize_t);
int PyList_Append(PyObject *, PyObject *);
ssize_t PyGC_Collect(void);

enum { FILE_INPUT = 257, RAW = 1 };
// The flag of types whose objects are integers.
#define LONG_SUBCLASS (1ul << 24)

// What the child was given by guest/zygote.py: what makes a new `__main__`, modules and builtins as they were before any program ran, modules
// that are called at the end, and the types of objects whose end nobody can notice. `changing` says
// that something must be done in every child before its program begins, `hooked` that there may be functions that want
// to be called in a fork.
struct world {
	const char *path;
	PyObject *prepare, *renew, *modules, *builtins, *atexit, *gc, *thread, *plain;
	int changing, hooked;
};

// The interpreter's state of this thread, with the frames of the warm interpreter in it, gives way to a new one. The new
// one is made when the thread has none, so that it becomes what the thread is known by; another keeps the interpreter
// from being without any meanwhile. The frames on the C stack are never returned to.
static void forget_frames(void)
{
	PyInterpreterState *interpreter = PyInterpreterState_Get();
	PyThreadState *meanwhile = PyThreadState_New(interpreter);
	PyThreadState_Clear(PyThreadState_Get());
	PyThreadState_DeleteCurrent();
	PyEval_RestoreThread(PyThreadState_New(interpreter));
	PyThreadState_Clear(meanwhile);
	PyThreadState_Delete(meanwhile);
}

static void drop(PyObject *object)
{
	if (object)
		Py_DecRef(object);
	else
		PyErr_Clear();
}

// In a child, before its run comes: the memory that every program writes to is copied now. More would cost every run
// more than it saves the ones that wait.
static void touch(void)
{
	PyObject *code = Py_CompileString("1", "main.py", FILE_INPUT), *names = PyDict_New();
	PyObject *done = code && names ? PyEval_EvalCode(code, names, names) : NULL;
	drop(done);
	drop(names);
	drop(code);
}

static int is_open(PyObject *stream)
{
	if (!stream || stream == NONE)
		return 0;
	PyObject *closed = PyObject_GetAttrString(stream, "closed");
	int answer = closed ? PyObject_IsTrue(closed) : 0;
	drop(closed);
	if (answer < 0)
		PyErr_Clear();
	return answer <= 0;
}

static int flush(void)
{
	int status = 0;
	PyObject *out = PySys_GetObject("stdout"), *err = PySys_GetObject("stderr"), *done;
	if (is_open(out)) {
		done = PyObject_CallMethod(out, "flush", NULL);
		if (!done) {
			PyErr_WriteUnraisable(out);
			status = -1;
		}
		drop(done);
	}
	if (is_open(err)) {
		done = PyObject_CallMethod(err, "flush", NULL);
		if (!done)
			status = -1;
		drop(done);
	}
	return status;
}

// Run and fail into nothing: the first compilation and the first traceback of a process make tables that every run
// needs, and touch memory that every child would copy then.
static void rehearse(void)
{
	static char text[] = "print(1)\nx = [i * i for i in range(9)]\ndef f(a):\n  return a\nclass A: pass\nf(1)\n1 / 0\n";
	int kept[2] = {fcntl(1, F_DUPFD_CLOEXEC, 64), fcntl(2, F_DUPFD_CLOEXEC, 64)};
	int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
	PyObject *names = PyDict_New(), *kind = NULL, *value = NULL, *trace = NULL;
	FILE *file = fmemopen(text, sizeof text - 1, "r");
	dup2(nothing, 1);
	dup2(nothing, 2);
	if (file && !PyRun_FileExFlags(file, "main.py", FILE_INPUT, names, names, 1, NULL)) {
		PyErr_Fetch(&kind, &value, &trace);
		PyErr_NormalizeException(&kind, &value, &trace);
		if (trace)
			PyException_SetTraceback(value, trace);
		PyErr_Display(kind, value, trace);
		drop(kind);
		drop(value);
		drop(trace);
	}
	drop(names);
	flush();
	dup2(kept[0], 1);
	dup2(kept[1], 2);
	close(kept[0]);
	close(kept[1]);
	close(nothing);
}

static int status_of_exit(void)
{
	PyObject *kind, *value, *trace, *code, *type;
	int status = 0;
	PyErr_Fetch(&kind, &value, &trace);
	PyErr_NormalizeException(&kind, &value, &trace);
	code = PyObject_GetAttrString(value, "code");
	if (!code)
		PyErr_Clear();
	if (code != NONE) {
		PyObject *said = code ? code : value, *err;
		type = PyObject_Type(said);
		if (PyType_GetFlags(type) & LONG_SUBCLASS) {
			status = (int)PyLong_AsLong(said);
			PyErr_Clear();
		} else {
			status = 1;
			err = PySys_GetObject("stderr");
			if (err && err != NONE)
				PyFile_WriteObject(said, err, RAW);
			else
				PyObject_Print(said, stderr, RAW);
			PyErr_Clear();
			fflush(stderr);
			PySys_WriteStderr("\n");
		}
		drop(type);
	}
	drop(code);
	drop(value);
	drop(kind);
	drop(trace);
	return status & 255;
}

// Run the file as `__main__`. The status to end with, or a signal's number, negative.
static int run(const char *path)
{
	FILE *file = fopen(path, "rbe");
	PyObject *names = PyModule_GetDict(PyDict_GetItemString(PyImport_GetModuleDict(), "__main__"));
	PyObject *result, *kind, *stream;
	int interrupted;
	if (!file) {
		PySys_WriteStderr("%s: can't open file '%s': [Errno %d] %s\n", program_invocation_name, path, errno,
			strerror(errno));
		return 2;
	}
	Py_IncRef(names);
	result = PyRun_FileExFlags(file, path, FILE_INPUT, names, names, 1, NULL);
	kind = PyErr_Occurred();
	interrupted = kind == PyExc_KeyboardInterrupt;
	PyObject *kept[3] = {NULL, NULL, NULL};
	PyErr_Fetch(&kept[0], &kept[1], &kept[2]);
	for (int i = 0; i < 2; i++) {
		stream = PySys_GetObject(i ? "stdout" : "stderr");
		if (stream && stream != NONE)
			drop(PyObject_CallMethod(stream, "flush", NULL));
	}
	PyErr_Restore(kept[0], kept[1], kept[2]);
	drop(names);
	if (result) {
		drop(result);
		return 0;
	}
	if (PyErr_GivenExceptionMatches(kind, PyExc_SystemExit))
		return status_of_exit();
	PyErr_Print();
	return interrupted ? -SIGINT : 1;
}

static void clear_names(PyObject *names)
{
	for (int private = 1; private >= 0; private--) {
		PyObject *name, *value;
		ssize_t at = 0;
		while (PyDict_Next(names, &at, &name, &value)) {
			const char *text = PyUnicode_AsUTF8(name);
			if (!text)
				PyErr_Clear();
			else if (value != NONE && (text[0] == '_' && text[1] != '_') == private && strcmp(text, "__builtins__"))
				PyDict_SetItem(names, name, NONE);
		}
	}
	PyErr_Clear();
}

// Make `names` what they were, touching only what differs: every object whose count of references changes is a page to
// copy.
static void restore(PyObject *names, PyObject *were)
{
	PyObject *name, *value, *others = PyList_New(0);
	ssize_t at = 0;
	while (PyDict_Next(names, &at, &name, &value))
		if (!PyDict_GetItem(were, name))
			PyList_Append(others, name);
	for (ssize_t i = PyList_Size(others) - 1; i >= 0; i--)
		PyDict_DelItem(names, PyList_GetItem(others, i));
	at = 0;
	while (PyDict_Next(were, &at, &name, &value))
		if (PyDict_GetItem(names, name) != value)
			PyDict_SetItem(names, name, value);
	drop(others);
	PyErr_Clear();
}

// What the interpreter does to modules at its end, in its order, for those that the program brought.
static void take_apart(const struct world *world)
{
	static const char *of_sys[] = {"path", "argv", "ps1", "ps2", "last_exc", "last_type", "last_value",
		"last_traceback", "path_hooks", "path_importer_cache", "meta_path", "__interactivehook__"};
	static const char *streams[][2] = {{"stdin", "__stdin__"}, {"stdout", "__stdout__"}, {"stderr", "__stderr__"}};
	PyObject *modules = PyImport_GetModuleDict(), *left = PyList_New(0), *names = PyDict_Copy(modules), *name, *value;
	PyObject *sys = PyModule_GetDict(PyDict_GetItemString(world->modules, "sys"));
	PyObject *builtins = PyModule_GetDict(PyDict_GetItemString(world->modules, "builtins"));
	ssize_t at = 0;
	PyDict_SetItemString(builtins, "_", NONE);
	for (size_t i = 0; i < sizeof of_sys / sizeof *of_sys; i++)
		PyDict_SetItemString(sys, of_sys[i], NONE);
	for (size_t i = 0; i < 3; i++) {
		value = PyDict_GetItemString(sys, streams[i][1]);
		PyDict_SetItemString(sys, streams[i][0], value ? value : NONE);
	}
	while (PyDict_Next(names, &at, &name, &value)) {
		if (PyDict_GetItem(world->modules, name) != value) {
			PyObject *weak = PyWeakref_NewRef(value, NULL);
			if (weak)
				PyList_Append(left, weak);
			drop(weak);
		}
		PyObject_SetItem(modules, name, NONE);
	}
	PyErr_Clear();
	PyDict_Clear(names);
	PyDict_Clear(modules);
	drop(names);
	restore(builtins, world->builtins);
	drop(PyObject_CallMethod(world->gc, "collect", NULL));
	for (at = PyList_Size(left) - 1; at >= 0; at--) {
		PyObject *module = PyObject_CallObject(PyList_GetItem(left, at), NULL);
		if (module && module != NONE && PyModule_GetDict(module))
			clear_names(PyModule_GetDict(module));
		drop(module);
	}
	PyErr_Clear();
}

// Whether nothing of what the program leaves could run any code when it is taken apart: there are no classes of its own,
// no modules that it brought, no open files, generators or weak references, only plain containers and functions.
static int leaves_nothing(const struct world *world)
{
	PyObject *left = PyObject_CallMethod(world->gc, "get_objects", NULL);
	ssize_t i = left ? PyList_Size(left) : 0;
	int plain = left != NULL;
	PyObject *main = PyDict_GetItemString(PyImport_GetModuleDict(), "__main__");
	while (plain && i-- > 0) {
		if (PyList_GetItem(left, i) == main)
			continue;
		PyObject *type = PyObject_Type(PyList_GetItem(left, i));
		ssize_t at = PyList_Size(world->plain);
		for (plain = 0; !plain && at-- > 0;)
			plain = PyList_GetItem(world->plain, at) == type;
		drop(type);
	}
	PyErr_Clear();
	drop(left);
	return plain;
}

// What an interpreter does at its end, in its order. The status to end with.
static int end(int status, const struct world *world)
{
	PyObject *threading = PyDict_GetItemString(PyImport_GetModuleDict(), "threading"), *done;
	if (threading && threading != NONE) {
		done = PyObject_CallMethod(threading, "_shutdown", NULL);
		if (!done)
			PyErr_WriteUnraisable(threading);
		drop(done);
	}
	// Before 3.10 each import of this module has functions of its own to call.
	PyObject *own = PyDict_GetItemString(PyImport_GetModuleDict(), "atexit");
	drop(PyObject_CallMethod(own && own != NONE ? own : world->atexit, "_run_exitfuncs", NULL));
	done = PyObject_CallMethod(world->thread, "_count", NULL);
	long threads = done ? PyLong_AsLong(done) : 1;
	drop(done);
	if (threads > 0 && atoi(Py_GetVersion() + 2) < 13)
		// Daemon threads must not run on while what they use is taken away; the interpreter knows how to stop them.
		return Py_FinalizeEx() < 0 ? 120 : status;
	if (threads > 0)
		// A newer one wants the state that it began with for that. So nothing is taken away.
		return flush() < 0 ? 120 : status;
	if (flush() < 0)
		status = 120;
	if (leaves_nothing(world))
		return status;
	PyGC_Collect();
	take_apart(world);
	if (flush() < 0)
		status = 120;
	return status;
}

#endif
